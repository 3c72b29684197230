"""Parquet files as one table, read a row group at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import column_array, column_dtype, common_dtype, listed
from phalanx.data.unpacked import ARRAY_BYTES, check_unpacked
from phalanx.errors import UserError

PARQUET_ERRORS = (
    *(OSError, ValueError, KeyError, NotImplementedError, TypeError, MemoryError),
    *(IndexError, OverflowError),
)
"""What pyarrow's errors derive from."""

MAX_ROWS = 2**16
"""Rows that are read at once, where the values of a dictionary stand for them."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class RowGroup(NamedTuple):
    path: Path
    file: Any
    """Of pyarrow, open."""
    number: int
    rows: range
    """Of all files, one after the other."""

    def __str__(self) -> str:
        return f"{self.path} row group {self.number}"


class ParquetTable:
    """Columns of one file, or of several one after the other, each of the type that holds the
    values of all files. Folders between them that are named KEY=VALUE are columns, too."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises: UserError when a file is damaged, or there are no rows."""
        self._files: dict[Path, Any] = {}
        try:
            for path in paths:
                self._files[path] = opened_parquet(path)
        except BaseException:
            self.close()
            raise
        self._partitions = _partitions(paths)
        self.groups: list[RowGroup] = []
        start = 0
        for path, file in self._files.items():
            for number in range(file.num_row_groups):
                stop = start + file.metadata.row_group(number).num_rows
                if stop > start:
                    self.groups.append(RowGroup(path, file, number, range(start, stop)))
                start = stop
        if not self.groups:
            raise UserError(f"{paths[0]} has no rows")

    @property
    def names(self) -> list[str]:
        """Names of the columns of the first file."""
        path, file = next(iter(self._files.items()))
        return [*file.schema_arrow.names, *self._partitions[path]]

    def check_names(self) -> None:
        """Raises: UserError for a file that has a column which the first has not."""
        for path, file in self._files.items():
            more = [name for name in file.schema_arrow.names if name not in self.names]
            if more:
                raise UserError(
                    f"{path} has a column {more[0]!r}, which {next(iter(self._files)).name} has "
                    "not\nsay which are wanted with --inputs"
                )

    def kind(self, name: str, path: Path | None = None) -> Any:
        """Return the Arrow type of a column in a file, the first by default.

        Raises: UserError when the file lacks it.
        """
        path = path or next(iter(self._files))
        names = self._files[path].schema_arrow.names
        if name in self._partitions[path]:
            return self._partitions[path][name].type
        if name not in names:
            raise UserError(f"{path} has no column {name!r}: it has {listed(names)}")
        return self._files[path].schema_arrow.field(name).type

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype that holds a column of all files.

        Raises: UserError naming two files when there is none, or the file that lacks the column.
        """
        dtypes = {
            str(path): column_dtype(self.kind(name, path), f"{path}, column {name!r}")
            for path in self._files
        }
        return common_dtype(dtypes, f"column {name!r}")

    def read(self, group: RowGroup, name: str) -> NDArray[Any]:
        """Return the values of a column, (n, …), in the dtype of all files.

        Raises: UserError naming the row group and the row, where a value is missing.
        """
        values = column_array(self.column(group, name), f"{group}, column {name!r}")
        return values.astype(self.dtype(name), copy=False)

    def column(self, group: RowGroup, name: str) -> Any:
        """Return a column of a row group as Arrow's. Raises: UserError when it is damaged."""
        import pyarrow as pa

        self.kind(name, group.path)
        if name in self._partitions[group.path]:
            return pa.repeat(self._partitions[group.path][name], len(group.rows))
        try:
            return self._read(group, name)
        except UserError:
            raise
        except PARQUET_ERRORS as error:
            raise UserError(f"{group} cannot be read: {error}") from error

    def _read(self, group: RowGroup, name: str) -> Any:
        import pyarrow as pa

        meta = group.file.metadata.row_group(group.number)
        leaves = [meta.column(i) for i in range(meta.num_columns)]
        leaves = [
            leaf for leaf in leaves if leaf.path_in_schema.split(".")[0] == name.split(".")[0]
        ]
        packed = sum(leaf.total_compressed_size for leaf in leaves)
        size = sum(max(leaf.total_uncompressed_size, 8 * leaf.num_values) for leaf in leaves)
        title = f"{group}, column {name!r}"
        check_unpacked(size, packed, title)
        if not any(leaf.has_dictionary_page for leaf in leaves):
            return group.file.read_row_group(group.number, columns=[name]).column(name)
        # A word of the dictionary may stand in every row: its size counts as often.
        step = min(MAX_ROWS, max(1, ARRAY_BYTES // max(1, size)))
        batches, size = [], 0
        for batch in group.file.iter_batches(step, row_groups=[group.number], columns=[name]):
            batches.append(batch)
            size += batch.nbytes
            check_unpacked(size, packed, title)
        return pa.Table.from_batches(batches).column(name)

    def where(self, number: int) -> str:
        """Return the location of a row, for error messages."""
        group = next(group for group in self.groups if number in group.rows)
        return f"{group}, row {number - group.rows.start} of it"

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def opened_parquet(path: Path) -> Any:
    """Open a file. Raises: UserError when it cannot be read."""
    import pyarrow  # optional dependency
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (*PARQUET_ERRORS, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read as Parquet: {error}") from error


def holds_bytes(kind: Any) -> bool:
    """Return whether a column of this type may hold images."""
    from pyarrow import types

    if types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _partitions(paths: Sequence[Path]) -> dict[Path, Mapping[str, Any]]:
    """Return, by file, the columns that the names of its folders make: those that differ."""
    import pyarrow as pa

    found: dict[Path, dict[str, str]] = {}
    for path in paths:
        parts = (folder.name.partition("=") for folder in reversed(path.parents))
        found[path] = {unquote(key): unquote(value) for key, equals, value in parts if equals}
    keys = dict.fromkeys(key for values in found.values() for key in values)
    columns: dict[Path, dict[str, Any]] = {path: {} for path in paths}
    for key in keys:
        words = {path: values[key] for path, values in found.items() if key in values}
        if len({*words.values()}) < 2 and len(words) == len(paths):
            continue
        are_whole = all(
            re.fullmatch(r"-?[0-9]{1,18}", word) for word in words.values() if word != _NO_VALUE
        )
        for path, word in words.items():
            kind = pa.int64() if are_whole else pa.string()
            value = None if word == _NO_VALUE else int(word) if are_whole else word
            columns[path][key] = pa.scalar(value, kind)
    return {**columns}
