"""CSV as spreadsheets, pandas and NumPy write it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import everything


def read(folder: Path, text: str, **options: Any) -> tuple[list[list[float]], list[float], Any]:
    """Inputs and targets of all rows, and the origin."""
    (folder / "t.csv").write_text(text)
    given = OriginOptions(**{"target": "t", **options})
    with closing(find_origin(str(folder / "t.csv"), given)) as origin:
        inputs, targets = everything(origin)
        return np.array(inputs).tolist(), targets.tolist(), origin


@pytest.mark.parametrize("word", ["12_34", "١٢", "infinity", "0x10", "1e5_0"])
def test_words_that_python_takes_for_numbers(tmp_path: Path, word: str) -> None:
    """`12_34` was packed as 1234, where every other reader says that it is text."""
    with pytest.raises(UserError, match=f"row 2, column 'a': '{word}' is not a number"):
        read(tmp_path, f"a,t\n{word},0\n")
    _, targets, origin = read(tmp_path, f"a,t\n1,{word}\n2,b\n")
    assert sorted(origin.classes) == sorted([word, "b"])
    assert sorted(targets) == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        '"Length, mm";"Width, mm";t\n1;2;a\n3;4;b\n',
        '"Length,\n mm";"Width; mm";t\n1;2;a\n3;4;b\n',
        "sep=;\nLength;Width;t\n1;2;a\n3;4;b\n",
        "sep=|\r\nLength|Width|t\r\n1|2|a\r\n3|4|b\r\n",
        "\ufeffLength\tWidth, mm\tt\n1\t2\ta\n3\t4\tb\n",
        "# measured, by hand, in May\n#\n\nLength,Width,t\n1,2,a\n3,4,b\n",
        "# Length,Width,t\n1,2,a\n3,4,b\n",
        ",Length,Width,t\n0,1,2,a\n1,3,4,b\n",
        "Unnamed: 0,Length,Width,t,\n0,1,2,a,\n1,3,4,b,\n",
    ],
    ids=["quotes", "lines", "sep", "sep|", "tab", "comment", "numpy", "pandas", "again"],
)
def test_headers(tmp_path: Path, text: str) -> None:
    """Separators were counted in quotes, too; `sep=;`, comments and an index made other columns."""
    inputs, targets, _ = read(tmp_path, text)
    assert (inputs, targets) == ([[1, 2], [3, 4]], [0, 1])


def test_separator_and_decimal_comma(tmp_path: Path) -> None:
    text = "a;b;t\n1,5;-2e1;0,25\n3;4;1\n"
    with pytest.raises(UserError, match="'1,5' is not a number\nsay --decimal ','"):
        read(tmp_path, text)
    inputs, targets, _ = read(tmp_path, text, decimal=",")
    assert (inputs, targets) == ([[1.5, -20], [3, 4]], [0.25, 1])
    with pytest.raises(UserError, match=r"'1\.5' is not a number\nsay --decimal '\.'"):
        read(tmp_path, "a;t\n1.5;0\n", decimal=",")
    assert read(tmp_path, "a|t\n1|0\n2|1\n", separator="|")[0] == [[1], [2]]
    with pytest.raises(UserError, match="row 2 has 1 values, the header 2 names\nvalues are sep"):
        read(tmp_path, "a,t\n1;0\n")
    with pytest.raises(UserError, match=r"--separator takes one character, .* not ', '"):
        OriginOptions(separator=", ")
    (tmp_path / "t.jsonl").write_text("{}")
    with pytest.raises(UserError, match="--decimal is for CSV, not for jsonl"):
        find_origin(str(tmp_path / "t.jsonl"), OriginOptions(decimal=","))


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 5, column 'a': 'x' is not a number"):
        read(tmp_path, "sep=,\n# one\na,t\n1,0\nx,1\n")


def test_whole_numbers_that_are_rounded_are_said(tmp_path: Path) -> None:
    inputs, _, origin = read(tmp_path, ",id,t\n0,16777217,0\n1,33554432,1\n")
    assert inputs == [[16777216], [33554432]]
    assert origin.notes == [
        "column 'id' has whole numbers that float32 rounds, such as 16777217, which is packed as "
        "16777216"
    ]
    assert str(origin.skipped[0]) == "1 columns that are the rows' index or have no name: ''"
