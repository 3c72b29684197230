"""Columns of several Parquet files are one, of a type that holds all, or refused by name."""

from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.cli.data_pack import pack_data
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError
from tests.data.packing.read import everything

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, row_group_size: int | None = None, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path, row_group_size=row_group_size)


def read(source: Path, **options: Any) -> tuple[Any, Any, Any]:
    """Inputs and targets of all rows, and the origin, closed."""
    given = OriginOptions(**{"target": "t", **options})
    with closing(find_origin(str(source), given)) as origin:
        inputs, targets = everything(origin)
        return np.array(inputs), targets, origin


@pytest.mark.parametrize("inputs", [("x",), ("x", "y")])
def test_a_null_in_a_list_is_no_number(tmp_path: Path, inputs: tuple[str, ...]) -> None:
    """The third row group held [null, 6], and -2147483648 was packed in its place: the dtype was
    that of the first row group, and the values were cast to it before they were checked."""
    lists = pa.array([[1, 2], [3, 4], [5, 6], [None, 6]], pa.list_(pa.int32()))
    write(tmp_path / "t.parquet", 2, x=lists, y=[1, 2, 3, 4], t=[0, 1, 0, 1])
    with pytest.raises(UserError, match="row group 1, column 'x' has no value in row 1"):
        read(tmp_path / "t.parquet", inputs=inputs)
    deep = [[[1], [2]], [[3], [None]]]
    write(tmp_path / "u.parquet", x=deep, y=[1, 2], t=[0, 1])
    with pytest.raises(UserError, match="column 'x' has no value in row 1"):
        read(tmp_path / "u.parquet", inputs=inputs)
    write(tmp_path / "u.parquet", x=[[[1], [2]], [[3], [4]]], y=[1, 2], t=[0, 1])
    assert read(tmp_path / "u.parquet", inputs=("x",))[0].tolist() == [[[1], [2]], [[3], [4]]]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_files_that_differ_in_type(tmp_path: Path, order: str) -> None:
    """Whole numbers in the first file made 0, 0 and 1 of the 0.25, 0.75 and 1.9 of the second, and
    int32 made 7 of 2**33 + 7: the names of the files decided."""
    whole, other = (tmp_path / f"{name}.parquet" for name in order)
    write(whole, x=[1, 2], t=[0, 1])
    write(other, x=[0.25, 1.9], t=[0, 1])
    inputs, _, _ = read(tmp_path)
    assert sorted(inputs[:, 0].tolist()) == sorted([1, 2, 0.25, float(np.float32(1.9))])
    write(whole, x=pa.array([1, 2], pa.int32()), t=[0, 1])
    write(other, x=[2**33 + 7, 3], t=[0.5, 1.5])
    inputs, targets, _ = read(tmp_path)
    assert sorted(inputs[:, 0].tolist()) == [1, 2, 3, 2**33 + 7]
    assert sorted(targets.tolist()) == [0, 0.5, 1, 1.5]


def test_files_that_no_type_holds(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1, 2], t=[0, 1])
    write(tmp_path / "b.parquet", x=pa.array([1, 2**63], pa.uint64()), t=[0, 1])
    with pytest.raises(UserError, match=r"'x' is uint64 in .*b.parquet, and int64 in .*a.parquet"):
        read(tmp_path)
    write(tmp_path / "b.parquet", x=["1", "2"], t=[0, 1])
    with pytest.raises(UserError, match=r"'x' is text in .*b.parquet, and int64 in .*a.parquet"):
        read(tmp_path)
    write(tmp_path / "b.parquet", x=[1, 2], t=["0", "1"])
    with pytest.raises(UserError, match=r"'t' is text in .*b.parquet, and int64 in .*a.parquet"):
        read(tmp_path)
    write(tmp_path / "b.parquet", x=pa.nulls(2), t=[0, 1])
    with pytest.raises(UserError, match=r"b.parquet, column 'x' has no value in any row"):
        read(tmp_path)


def test_files_that_differ_in_columns(tmp_path: Path) -> None:
    """A second file without a column was a KeyError that named no file."""
    write(tmp_path / "a.parquet", x=[1, 2], y=[1, 2], t=[0, 1])
    write(tmp_path / "b.parquet", x=[1, 2], t=[0, 1])
    for options in ({}, {"inputs": ("x", "y")}, {"target": "y"}):
        with pytest.raises(UserError, match=r"b.parquet has no column 'y': it has x, t"):
            read(tmp_path, **options)
    (tmp_path / "b.parquet").rename(tmp_path / "0.parquet")
    with pytest.raises(UserError, match=r"a.parquet has a column 'y', which 0.parquet lacks"):
        read(tmp_path)
    assert len(read(tmp_path, inputs=("x",))[0]) == 4


def test_decimals_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's prices became classes, `3 classes: 1.50, 10.00, 2.25`, and `--classes 0` said that
    they were text."""
    prices = [Decimal("1.50"), Decimal("10.00"), Decimal("2.25"), Decimal("0.10")]
    labels = pa.array([0, 1, 1, 0], pa.decimal128(9, 0))
    write(tmp_path / "t.parquet", price=prices, label=labels)
    reading = OriginOptions(target="price", inputs=("label",))
    pack_data(str(tmp_path / "t.parquet"), tmp_path / "p", reading=reading)
    assert "targets float32" in capsys.readouterr().out
    _, targets, _ = read(tmp_path / "t.parquet", target="price", classes=0)
    np.testing.assert_array_equal(targets, np.array([1.5, 10, 2.25, 0.1], np.float32))
    inputs, targets, origin = read(tmp_path / "t.parquet", target="label")
    np.testing.assert_array_equal(inputs[:, 0], np.array([1.5, 10, 2.25, 0.1], np.float32))
    assert (targets.tolist(), origin.classes) == ([0, 1, 1, 0], ["0", "1"])
    write(tmp_path / "t.parquet", x=[Decimal(10**20)], t=[0])
    with pytest.raises(UserError, match=r"decimal128\(21, 0\) out of the range of int64"):
        read(tmp_path / "t.parquet")


def test_folders_of_spark(tmp_path: Path) -> None:
    """Spark writes `year=2023/part-0.parquet`; the folder was "of no known kind"."""
    for year, country in ((2023, "de"), (2024, "at")):
        folder = tmp_path / f"year={year}" / f"country={country}"
        write(folder / "part-0.parquet", x=[year / 2], t=[0.5])
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "year=2024" / ".part-0.parquet.crc").touch()
    inputs, _, origin = read(tmp_path, inputs=("x", "year"))
    assert inputs.tolist() == [[1011.5, 2023], [1012, 2024]]
    (rest,) = origin.skipped
    assert (rest[:2], "_SUCCESS" in rest, ".crc" in rest) == ("2 ", True, True)
    _, targets, origin = read(tmp_path, inputs=("x",), target="country")
    assert (targets.tolist(), origin.classes) == ([1, 0], ["at", "de"])
    inputs, _, _ = read(tmp_path / "year=2024")
    assert inputs.tolist() == [[1012.0]], "the same in all rows, so no column"
    write(tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "p.parquet", x=[1.0], t=[0.5])
    with pytest.raises(UserError, match=r"column 'year' has no value in row 0"):
        read(tmp_path, inputs=("x", "year"))


def test_the_index_of_pandas_is_no_input(tmp_path: Path) -> None:
    """The index of a table that is sorted by its classes gives them away."""
    write(tmp_path / "t.parquet", x=[0.5, 1.5], t=[0, 1], __index_level_0__=[0, 1])
    inputs, _, origin = read(tmp_path / "t.parquet")
    assert inputs.tolist() == [[0.5], [1.5]]
    assert str(origin.skipped[0]).endswith("rows' index or have no name: '__index_level_0__'")
    assert read(tmp_path / "t.parquet", inputs=("__index_level_0__",))[0].tolist() == [[0], [1]]


def test_whole_numbers_that_are_rounded_are_said(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", 1, x=[0.5, 1.5], id=[16777216, 16777217], t=[0, 1])
    _, _, origin = read(tmp_path / "t.parquet")
    assert origin.notes == [
        "column 'id' has whole numbers that float32 rounds, such as 16777217, which is packed as "
        "16777216"
    ]
    inputs, _, origin = read(tmp_path / "t.parquet", inputs=("id",))
    assert (inputs.tolist(), origin.notes) == ([[16777216], [16777217]], [])
