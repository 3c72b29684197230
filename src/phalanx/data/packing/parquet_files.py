"""Columns of Parquet files: numbers, lists of equal length, or images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packing.csv_file import chosen_columns
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.origin import ChunkedOrigin, OriginOptions, fingerprint_of, targets_field
from phalanx.data.packing.targets import TargetLocations, labelled
from phalanx.errors import UserError
from phalanx.launch.cores import check_fits

BYTES_OF_A_ROW = 40
"""Bytes of memory per row while packing: its target, and its position in the order."""

PARQUET_ERRORS = (
    *(OSError, ValueError, KeyError, NotImplementedError, TypeError, MemoryError),
    *(IndexError, OverflowError),
)
"""What pyarrow's errors derive from."""


class ParquetFiles(ChunkedOrigin):
    """One file, or all of a folder, a row group at a time. Inputs are several columns of numbers,
    or one of lists, or one of images (their bytes, or a struct with the field `bytes`)."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Reads the target column, and the images' sizes.

        Raises: UserError when a file is damaged, or columns are missing or not of such kinds.
        """
        super().__init__()
        self._files = [opened_parquet(path) for path in paths]
        self._paths = list(paths)
        names = self._files[0].schema_arrow.names
        self._columns, target = chosen_columns(paths[0], names, options)
        self._groups = [
            (file, group)
            for file, content in enumerate(self._files)
            for group in range(content.num_row_groups)
        ]
        counts = [self._files[f].metadata.row_group(g).num_rows for f, g in self._groups]
        ends = np.cumsum(counts).tolist()
        self.chunks = [range(end - count, end) for count, end in zip(counts, ends, strict=True)]
        self.text = f"{paths[0] if len(paths) == 1 else paths[0].parent}, target {target}"
        self.fingerprint = fingerprint_of(paths)
        check_fits(sum(counts) * BYTES_OF_A_ROW, f"{paths[0]} has {sum(counts):,} rows")
        locations = TargetLocations(
            f"{paths[0]}, column {target!r}", lambda i: f"{self._row(i)}, column {target!r}"
        )
        self.targets, self.classes = labelled(
            self._target_values(target), locations, options.classes
        )
        self._form = self._image_form(options)
        self.notes = self._form.notes if self._form else []
        field = self._form.field if self._form else self._array_field()
        self.fields = [field, targets_field(self.targets)]

    def read_chunk(self, chunk: int) -> NDArray[Any] | Sequence[Any]:
        table = self._read(chunk, self._columns)
        if self._form is not None:
            return _image_bytes(table.column(0))
        array = self._array(chunk, table)
        field = self.fields[0]
        if list(array.shape[1:]) != field.shape:
            raise UserError(
                f"{self._where(chunk)}, column {self._columns[0]!r}: lists of "
                f"{array.shape[1:]} values, {field.shape} before"
            )
        return array.astype(field.dtype, copy=False)

    def pack_item(self, item: Any, number: int) -> NDArray[Any] | bytes:
        assert self._form is not None
        return self._form.packed(item, f"{self.text}: the image of row {number}")

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _read(self, chunk: int, columns: Sequence[str]) -> Any:
        file, group = self._groups[chunk]
        try:
            table = self._files[file].read_row_group(group, columns=list(columns))
        except PARQUET_ERRORS as error:
            raise UserError(f"{self._where(chunk)} cannot be read: {error}") from error
        table = table.select(list(columns)).combine_chunks()
        for name in columns:
            column = table.column(name)
            if column.null_count:
                row = column.is_null().to_pylist().index(True)
                raise UserError(
                    f"{self._where(chunk)}, column {name!r} has no value in row {row} of it"
                )
        return table

    def _where(self, chunk: int) -> str:
        file, group = self._groups[chunk]
        return f"{self._paths[file]} row group {group}"

    def _row(self, number: int) -> str:
        chunk = next(i for i, rows in enumerate(self.chunks) if number in rows)
        return f"{self._where(chunk)}, row {number - self.chunks[chunk].start} of it"

    def _target_values(self, target: str) -> NDArray[Any]:
        parts = []
        for chunk in range(len(self._groups)):
            column = self._read(chunk, [target]).column(0)
            where = f"{self._where(chunk)}, column {target!r}"
            parts.append(as_array(column, where))
            if parts[-1].dtype.kind not in "biufU":
                raise UserError(f"{where} holds {column.type}, neither numbers nor text")
            if (parts[0].dtype.kind == "U") != (parts[-1].dtype.kind == "U"):
                raise UserError(f"{where} holds {column.type}, and another kind before")
        if not sum(map(len, parts)):
            raise UserError(f"{self._paths[0]} has no rows")
        try:
            return np.concatenate(parts)
        except ValueError as error:
            raise UserError(f"{self._paths[0]}, column {target!r}: {error}") from error

    def _image_form(self, options: OriginOptions) -> ImageForm | None:
        schema = self._files[0].schema_arrow
        if len(self._columns) != 1 or not holds_bytes(schema.field(self._columns[0]).type):
            return None
        return choose_form(self._peeks(), options)

    def _peeks(self) -> Iterator[Peek]:
        for number, chunk in enumerate(self.chunks):
            contents = _image_bytes(self._read(number, self._columns).column(0))
            for row, content in zip(chunk, contents, strict=True):
                if not content:
                    raise UserError(f"{self._row(row)}, column {self._columns[0]!r}: no image")
                yield peek(content, f"{self.text}: the image of row {row}")

    def _array_field(self) -> Field:
        array = self._array(0, self._read(0, self._columns))
        dtype = "float32" if array.dtype == np.float64 else array.dtype.name
        return Field(name="inputs", dtype=dtype, shape=list(array.shape[1:]))

    def _array(self, chunk: int, table: Any) -> NDArray[Any]:
        """(n, …): one column of lists as it is, several of numbers side by side."""
        parts = [
            as_array(table.column(name), f"{self._where(chunk)}, column {name!r}")
            for name in self._columns
        ]
        for name, part in zip(self._columns, parts, strict=True):
            if part.dtype.kind not in "biuf" or (len(parts) > 1 and part.ndim > 1):
                what = "text" if part.dtype.kind not in "biuf" else "lists beside other columns"
                raise UserError(
                    f"{self._where(chunk)}, column {name!r} holds {what}\n"
                    "name columns of numbers with --inputs, or one of lists or images"
                )
        return parts[0] if parts[0].ndim > 1 else np.stack(parts, axis=1)


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


def _image_bytes(column: Any) -> list[bytes]:
    from pyarrow import types

    values = column.to_pylist()
    return [v["bytes"] for v in values] if types.is_struct(column.type) else values


def as_array(column: Any, where: str) -> NDArray[Any]:
    """(n,) of numbers or text; (n, length) of lists.

    Raises: UserError when lists differ in length or hold lists.
    """
    from pyarrow import types

    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = {len(value) for value in column.to_pylist()}
        if len(lengths) > 1:
            raise UserError(f"{where}: lists of {min(lengths)} to {max(lengths)} values")
        chunk = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        flat = chunk.flatten().to_numpy(zero_copy_only=False)
        if flat.dtype.kind == "O":
            raise UserError(f"{where}: lists of {kind.value_type}, not of numbers")
        array: NDArray[Any] = flat.reshape(len(column), lengths.pop() if lengths else 0)
        return array
    values: NDArray[Any] = column.to_numpy()
    return values.astype(str) if values.dtype.kind == "O" else values
