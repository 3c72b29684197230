"""Columns of Parquet files of which several are inputs, each a field of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import check_rounded
from phalanx.data.packing.origin import Origin, OriginOptions
from phalanx.data.packing.parquet_files import ParquetFiles
from phalanx.data.packing.parquet_table import ParquetTable, RowGroup, holds_bytes, opened_parquet
from phalanx.data.packing.rows_origin import RowArray, RowFile, RowsOrigin, fields_of
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
        self._table = ParquetTable(paths)
        names = fields_of(options.inputs, options.target)
        files = [
            RowFile(group.path, {field: self._column(group, name) for field, name in names.items()})
            for group in self._table.groups
        ]
        self._arrange(files, options)

    def close(self) -> None:
        self._table.close()

    def _column(self, group: RowGroup, name: str) -> RowArray:
        if holds_bytes(self._table.kind(name, group.path)):
            raise UserError(
                f"{group.path}, column {name!r} holds images beside other inputs\nname one column "
                "of images alone, or pack what a function yields, my_data.py:samples"
            )
        dtype = self._table.dtype(name)
        dtype = np.dtype(np.float32) if dtype == np.float64 else dtype

        def read(start: int, stop: int) -> NDArray[Any]:
            values = self._table.read(group, name)[start:stop]
            return check_rounded(f"column {name!r}", values, dtype, self.notes)

        rows = len(group.rows)
        return RowArray(name, (rows, *read(0, 1).shape[1:]), dtype, read, rows)
