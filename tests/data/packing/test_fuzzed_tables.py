"""Any table, in any format: what is packed is what other libraries read, or refused by name.

Types × nulls × row groups × files × the order of their names, as Parquet, CSV, JSON lines and
Arrow.
The oracle is the library of the format: pyarrow, `json`.
"""

import json
import math
import warnings
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from phalanx.cli.data_pack import pack_data
from phalanx.data.packed.pack import Pack
from phalanx.data.packing.find_origin import find_origin
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.run import PackingOptions, pack, split
from phalanx.errors import UserError
from phalanx.run.samples import samples_of
from tests.data.packed.made import folder

pa = pytest.importorskip("pyarrow")
arrow_csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

Rows = list[list[Any]]
"""Of values, by row, those of the inputs in each."""

SIGNED = ["int8", "int32", "int64"]
NUMBERS = [*SIGNED, "uint64", "float32", "float64", "bool", "decimal"]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9),
    "uint64": st.integers(0, 2**64 - 1) | st.integers(0, 9),
    "float32": st.floats(width=32, allow_infinity=False, allow_nan=False),
    "float64": st.floats(-1e30, 1e30),
    "bool": st.booleans(),
    "decimal": st.decimals(-9999, 9999, places=2),
    "text": st.text("ab1", min_size=1, max_size=3),
}


def arrow_type(kind: str, is_list: bool) -> Any:
    names = {"text": pa.string(), "decimal": pa.decimal128(9, 2), "bool": pa.bool_()}
    inner = names[kind] if kind in names else pa.type_for_alias(kind)
    return pa.list_(inner) if is_list else inner


class Part(NamedTuple):
    """A file of a table."""

    name: str
    kinds: list[str]
    """By column."""
    columns: Rows
    """Their values."""
    row_group_size: int


class Made(NamedTuple):
    parts: list[Part]
    is_list: bool
    """One column of lists, instead of columns of single values."""
    is_whole: bool
    """No value is missing."""


@st.composite
def tables(draw: st.DrawFn) -> Made:
    is_list, may_miss = draw(st.booleans()), draw(st.sampled_from([False, False, True]))
    num_columns, length = (1 if is_list else draw(st.integers(1, 3))), draw(st.integers(1, 3))
    alike = draw(st.sampled_from([SIGNED, ["float32", "float64"], NUMBERS, [*NUMBERS, "text"]]))
    parts, num_missing = [], 0
    for name in draw(st.permutations("abc"))[: draw(st.integers(1, 3))]:
        kinds = [draw(st.sampled_from(alike)) for _ in range(num_columns)]
        num_rows, columns = draw(st.integers(1, 5)), []
        for kind in kinds:
            size = num_rows * (length if is_list else 1)
            values: list[Any] = draw(st.lists(VALUES[kind], min_size=size, max_size=size))
            if may_miss and draw(st.booleans()):
                values[draw(st.integers(0, size - 1))] = None
                num_missing += 1
            starts = range(0, size, length)
            columns.append([values[i : i + length] for i in starts] if is_list else values)
        parts.append(Part(name, kinds, columns, draw(st.integers(1, 5))))
    return Made(parts, is_list, not num_missing)


def arrow_table(part: Part, is_list: bool) -> Any:
    columns = {
        f"x{i}": pa.array(values, arrow_type(kind, is_list))
        for i, (kind, values) in enumerate(zip(part.kinds, part.columns, strict=True))
    }
    return pa.table({**columns, "t": [0.5] * len(part.columns[0])})


def as_rows(table: Any) -> Rows:
    """The values of the inputs, lists as so many."""
    columns = [table.column(name).to_pylist() for name in table.column_names if name != "t"]
    return [
        [value for cell in cells for value in (cell if isinstance(cell, list) else [cell])]
        for cells in zip(*columns, strict=True)
    ]


def write_parquet(place: Path, made: Made) -> tuple[Path, Rows]:
    rows = []
    (place / "source").mkdir()
    for part in sorted(made.parts):
        path = place / "source" / f"{part.name}.parquet"
        parquet.write_table(
            arrow_table(part, made.is_list), path, row_group_size=part.row_group_size
        )
        rows += as_rows(parquet.read_table(path))
    return place / "source", rows


def write_csv(place: Path, made: Made) -> tuple[Path, Rows]:
    path = place / "source.csv"
    arrow_csv.write_csv(arrow_table(made.parts[0], is_list=False), path)
    return path, as_rows(arrow_csv.read_csv(path))


def write_json(place: Path, made: Made) -> tuple[Path, Rows]:
    path = place / "source.jsonl"
    lines = [
        json.dumps(row, default=float)
        for part in made.parts
        for row in arrow_table(part, made.is_list).to_pylist()
    ]
    path.write_text("\n".join(lines))
    read = map(json.loads, lines)
    return path, as_rows_of_json([[*row.values()][:-1] for row in read])


def as_rows_of_json(rows: list[list[Any]]) -> Rows:
    return [
        [v for cell in row for v in (cell if isinstance(cell, list) else [cell])] for row in rows
    ]


def packed_rows(source: Path, num_columns: int) -> Rows:
    """Pack as the command does, and read all inputs."""
    inputs = tuple(f"x{i}" for i in range(num_columns))
    with closing(find_origin(str(source), OriginOptions(inputs=inputs, target="t"))) as origin:
        pack(origin, source.parent / "p", PackingOptions(validation=0))
        order = split(origin.chunks, seed=0, share=0).train
    read = Pack(source.parent / "p" / "train")
    values = read.read("inputs", np.argsort(order))
    read.close()
    rows: Rows = values.reshape(len(values), -1).tolist()
    return rows


def trained_rows(made: Made) -> tuple[Rows, Rows]:
    """The rows of a table in memory, as `phalanx.start` reads them."""
    table = arrow_table(made.parts[0], made.is_list)
    (batch,) = samples_of(table, {}).batches([torch.arange(len(table))])
    columns = [part.reshape(len(table), -1) for name, part in batch.items() if name != "t"]
    packed = [[v for c in columns for v in c[row].tolist()] for row in range(len(table))]
    return packed, as_rows(table)


def is_value(packed: Any, value: Any) -> bool:
    """Whether a number is the one that the oracle read, or the nearest float32 or float64."""
    if value is None or isinstance(value, str):
        return False
    exact = Decimal(value) if isinstance(value, int) else value
    with np.errstate(over="ignore"):
        return packed in (exact, float(value), float(np.float32(float(value)))) or (
            isinstance(value, int) and packed == float(np.float32(value))
        )


def must_be_packed(made: Made, form: str) -> bool:
    kinds = {kind for part in made.parts for kind in part.kinds}
    are_numbers = kinds <= {*SIGNED} or kinds <= {"float32", "float64"} or kinds <= {"decimal"}
    return made.is_whole and are_numbers and form != "json"


@settings(max_examples=60, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(tables(), st.sampled_from(["parquet", "csv", "json", "arrow"]))
def test_any_table_is_packed_as_it_is_read_or_refused(made: Made, form: str) -> None:
    if form in ("csv", "arrow"):
        made = made._replace(parts=made.parts[:1])
    if form == "csv" and made.is_list:
        form = "parquet"
    with folder() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if form == "arrow":
                packed, rows = trained_rows(made)
            else:
                write = {"parquet": write_parquet, "csv": write_csv, "json": write_json}
                source, rows = write[form](place, made)
                packed = packed_rows(source, len(made.parts[0].columns))
        except UserError as error:
            assert not must_be_packed(made, form), error
            assert len(str(error).splitlines()) <= 2
            assert any(word in str(error) for word in ("'x", "x0", "inputs", "column")), error
            event(f"{form} refused")
            return
    event(f"{form} packed")
    assert len(packed) == len(rows)
    for got, read in zip(packed, rows, strict=True):
        assert len(got) == len(read)
        assert all(map(is_value, got, read)), (got, read)
        assert all(map(math.isfinite, got))


def test_the_command_says_what_it_refuses(tmp_path: Path) -> None:
    part = Part("a", ["int32"], [[[1, 2], [None, 3]]], 1)
    source, _ = write_parquet(tmp_path, Made([part], is_list=True, is_whole=False))
    with pytest.raises(
        UserError, match=r"a.parquet row group 1, column 'x0' has no value in row 0"
    ):
        pack_data(str(source), tmp_path / "p", reading=OriginOptions(target="t"))
