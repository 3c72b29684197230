"""Tables are read as they stand in the file, and errors name row and column."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import RANDOM, everything, packed, png

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "iris.csv"
    path.write_text("width;height; kind\n1;2.5;rose\n\n3;4e2;iris\n5;-6;rose\n")
    origin = find_origin(str(path), OriginOptions(target="kind"))
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(inputs, np.array([[1, 2.5], [3, 400], [5, -6]], np.float32))
    assert targets.tolist() == [1, 0, 1]
    assert origin.classes == ["iris", "rose"]
    chosen = find_origin(str(path), OriginOptions(target="height", inputs=("width",)))
    inputs, targets = everything(chosen)
    assert np.array(inputs).tolist() == [[1], [3], [5]]
    assert targets.dtype == np.float32, "a quantity, not a class"
    assert chosen.classes == []


CSV_FAULTS = {
    "row 3, column 'a': 'x' is not a number": "a,t\n1,0\nx,1\n",
    "row 2, column 'a': 'nan' is not a number": "a,t\nnan,0\n",
    "row 3, column 'a': '' is not a number": "a,t\n1,0\n,1\n",
    "row 3 has 1 values, the header 2 names": "a,t\n1,0\n2\n",
    "no rows below its header": "a,t\n",
    "has no column 't': it has a, b": "a,b\n1,2\n",
    "has two columns 'a'": "a,a,t\n1,2,3\n",
    "too large for float32": "a,t\n1e39,0\n",
    "row 4, column 't': there is no target": "a,t\n1,cat\n\n2,\n3,dog\n",
    "row 3, column 't': the target is 'nan'": "a,t\n1,0.5\n2,nan\n",
    "row 2 is not a row of a table: field larger than": f"a,t\n{'1' * 140_000},0\n",
    "is not text: it holds bytes that are 0": "a,t\n1,\0\n",
}


@pytest.mark.parametrize("message", CSV_FAULTS)
def test_csv_that_is_wrong(message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(CSV_FAULTS[message])
    with pytest.raises(UserError, match=message) as caught:
        find_origin(str(path), OriginOptions(target="t"))
    assert str(path) in str(caught.value)


def test_csv_without_a_target(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="choose one with --target: a, b"):
        find_origin(str(tmp_path / "t.csv"), OriginOptions())
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(UserError, match="is not UTF-8: byte 6"):
        find_origin(str(tmp_path / "bytes.csv"), OriginOptions(target="b"))


def test_parquet_columns_over_several_files(tmp_path: Path) -> None:
    for i in range(2):
        table = pyarrow.table({"a": [1.0, 2, 3], "b": [4, 5, 6 + i], "t": ["x", "y", "x"]})
        parquet.write_table(table, tmp_path / f"{i}.parquet", row_group_size=2)
    origin = find_origin(str(tmp_path), OriginOptions(target="t"))
    assert [len(chunk) for chunk in origin.chunks] == [2, 1, 2, 1]
    inputs, targets = everything(origin)
    assert inputs[0].dtype == np.float32
    assert np.array(inputs).tolist() == [[1, 4], [2, 5], [3, 6], [1, 4], [2, 5], [3, 7]]
    assert targets.tolist() == [0, 1, 0, 0, 1, 0]
    train, validation = packed(origin, tmp_path / "p")
    values = [*train.read("inputs", np.arange(4)), *validation.read("inputs", np.arange(2))]
    assert sorted(np.array(values).tolist()) == sorted(np.array(inputs).tolist())
    train.close()
    validation.close()


def test_parquet_lists_and_images(tmp_path: Path) -> None:
    tokens = RANDOM.integers(0, 99, (5, 3))
    table = pyarrow.table({"tokens": tokens.tolist(), "next": (tokens + 1).tolist()})
    parquet.write_table(table, tmp_path / "t.parquet")
    origin = find_origin(str(tmp_path / "t.parquet"), OriginOptions(target="next"))
    inputs, targets = everything(origin)
    np.testing.assert_array_equal(np.array(inputs), tokens)
    np.testing.assert_array_equal(targets, tokens + 1)
    images = RANDOM.integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
    column = [{"bytes": png(image), "path": None} for image in images]
    parquet.write_table(pyarrow.table({"image": column, "label": [0, 1, 1, 0]}), tmp_path / "i.pq")
    options = OriginOptions(target="label", inputs=("image",))
    origin = find_origin(str(tmp_path / "i.pq"), options)
    inputs, _ = everything(origin)
    assert inputs == [item["bytes"] for item in column]
    decoded = OriginOptions(target="label", inputs=("image",), decode=True)
    inputs, _ = everything(find_origin(str(tmp_path / "i.pq"), decoded))
    np.testing.assert_array_equal(np.array(inputs), images.transpose(0, 3, 1, 2))


def test_several_inputs_of_parquet(tmp_path: Path) -> None:
    places, charges = RANDOM.random((5, 6)), np.arange(5)
    table = pyarrow.table({"places": list(places), "charge": charges, "energy": charges / 8})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    options = OriginOptions(inputs=("places", "charge"), target="energy")
    origin = find_origin(str(tmp_path / "t.parquet"), options)
    rows = origin.read(np.arange(5))
    origin.close()
    assert isinstance(rows, dict)
    assert origin.text == f"{tmp_path / 't.parquet'}, target energy"
    np.testing.assert_array_equal(rows["places"], places.astype(np.float32))
    np.testing.assert_array_equal(rows["charge"], charges)
    assert (rows["targets"] == charges / 8).all()
    table = pyarrow.table({"x": [[1], [2, 3]], "y": [1, 2]})
    parquet.write_table(table, tmp_path / "u.parquet")
    with pytest.raises(
        UserError, match="column 'x' has lists of differing lengths: 1 in row 0, 2 in row 1"
    ):
        everything(find_origin(str(tmp_path / "u.parquet"), OriginOptions(inputs=("x", "y"))))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, None], "t": [0, 1]}, "row group 0, column 'a' has no value in row 1"),
        (
            {"a": [[1, 2], [3]], "t": [0, 1]},
            "column 'a' has lists of differing lengths: 2 in row 0, 1 in row 1",
        ),
        (
            {"a": ["x", "y"], "t": [0, 1]},
            "row 0 of it, column 'a': the text 'x' is not an array of num",
        ),
        ({"a": [b"GIF?", b"x"], "t": [0, 1]}, "row 0 of it, column 'a' is not an image"),
        ({"a": [b"GIF?", b""], "t": [0, 1]}, "row group 0, column 'a', row 1: no image"),
    ],
)
def test_parquet_that_is_wrong(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=message):
        everything(find_origin(str(tmp_path / "t.parquet"), OriginOptions(target="t")))
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        find_origin(str(tmp_path / "t.parquet"), OriginOptions(target="t"))
