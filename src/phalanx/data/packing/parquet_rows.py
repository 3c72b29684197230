"""Columns of Parquet files of which several are inputs, each a field of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.origin import Origin, OriginOptions
from phalanx.data.packing.parquet_files import (
    PARQUET_ERRORS,
    ParquetFiles,
    as_array,
    holds_bytes,
    opened_parquet,
)
from phalanx.data.packing.rows_origin import RowArray, RowFile, RowsOrigin, fields_of, listed
from phalanx.errors import UserError


def read_parquet(paths: Sequence[Path], options: OriginOptions) -> Origin:
    """Return columns as one field of inputs; as several where those named hold lists.

    Raises: UserError when a file is damaged, or columns are missing or not of such kinds.
    """
    from pyarrow import types

    with opened_parquet(paths[0]) as first:
        kinds = {field.name: field.type for field in first.schema_arrow}
    has_lists = any(name in kinds and types.is_nested(kinds[name]) for name in options.inputs)
    if len(options.inputs) > 1 and has_lists:
        return ParquetRows(paths, options)
    return ParquetFiles(paths, options)


class ParquetRows(RowsOrigin):
    """Columns of numbers, or of lists of equal length, a row group at a time."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Raises: UserError when a file is damaged, or columns are missing or not of such kinds."""
        super().__init__()
        self._opened = [(path, opened_parquet(path)) for path in paths]
        names = fields_of(options.inputs, options.target)
        groups = [
            RowFile(path, {f: _column(path, file, g, name) for f, name in names.items()})
            for path, file in self._opened
            for g in range(file.num_row_groups)
            if file.metadata.row_group(g).num_rows
        ]
        if not groups:
            raise UserError(f"{paths[0]} has no rows")
        self._arrange(groups, options)

    def close(self) -> None:
        for _, file in self._opened:
            file.close()


def _column(path: Path, file: Any, group: int, name: str) -> RowArray:
    schema = file.schema_arrow
    if name not in schema.names:
        raise UserError(f"{path} has no column {name!r}: it has {listed(schema.names)}")
    if holds_bytes(schema.field(name).type):
        raise UserError(
            f"{path}, column {name!r} holds images beside other inputs\nname one column of images "
            "alone, or pack what a function yields, my_data.py:samples"
        )

    def read(start: int, stop: int) -> NDArray[Any]:
        where = f"{path} row group {group}"
        try:
            column = file.read_row_group(group, columns=[name]).column(0).slice(start, stop - start)
        except PARQUET_ERRORS as error:
            raise UserError(f"{where} cannot be read: {error}") from error
        if column.null_count:
            row = start + column.is_null().to_pylist().index(True)
            raise UserError(f"{where}, column {name!r} has no value in row {row} of it")
        array = as_array(column, f"{where}, column {name!r}")
        return array.astype(np.float32) if array.dtype == np.float64 else array

    rows = file.metadata.row_group(group).num_rows
    first = read(0, 1)
    return RowArray(name, (rows, *first.shape[1:]), first.dtype, read, rows)
