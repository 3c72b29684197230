"""Columns of Parquet files: numbers, lists of equal length, or images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import check_rounded
from phalanx.data.packed.index import Field
from phalanx.data.packing.chosen_columns import chosen_columns, index_columns
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.origin import ChunkedOrigin, OriginOptions, fingerprint_of, targets_field
from phalanx.data.packing.parquet_table import ParquetTable, RowGroup, holds_bytes
from phalanx.data.packing.targets import TargetLocations, labelled
from phalanx.errors import UserError
from phalanx.launch.cores import check_fits

BYTES_OF_A_ROW = 40
"""Bytes of memory per row while packing: its target, and its position in the order."""


class ParquetFiles(ChunkedOrigin):
    """One file, or all of a folder, a row group at a time. Inputs are several columns of numbers,
    or one of lists, or one of images (their bytes, or a struct with the field `bytes`)."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Reads the target column, and the images' sizes.

        Raises: UserError when a file is damaged, or columns are missing or not of such kinds.
        """
        super().__init__()
        self._table = ParquetTable(paths)
        names = self._table.names
        self._columns, target = chosen_columns(paths[0], names, options)
        if not options.inputs:
            self._table.check_names()
            self.skipped = index_columns(names, target)
        self.chunks = [group.rows for group in self._table.groups]
        num_rows = self.chunks[-1].stop
        self.text = f"{paths[0] if len(paths) == 1 else paths[0].parent}, target {target}"
        self.fingerprint = fingerprint_of(paths)
        check_fits(num_rows * BYTES_OF_A_ROW, f"{paths[0]} has {num_rows:,} rows")
        locations = TargetLocations(
            f"{paths[0]}, column {target!r}", lambda i: f"{self._table.where(i)}, column {target!r}"
        )
        values = [self._table.read(group, target) for group in self._table.groups]
        self.targets, self.classes = labelled(
            _joined(values, locations), locations, options.classes
        )
        self._form = self._image_form(options)
        self.notes = self._form.notes if self._form else []
        field = self._form.field if self._form else self._array_field()
        self.fields = [field, targets_field(self.targets)]

    def read_chunk(self, chunk: int) -> NDArray[Any] | Sequence[Any]:
        group, field = self._table.groups[chunk], self.fields[0]
        if self._form is not None:
            return self._images(group)
        array = self._array(group, np.dtype(field.dtype))
        if list(array.shape[1:]) != field.shape:
            raise UserError(
                f"{group}, column {self._columns[0]!r}: lists of {array.shape[1:]} values, "
                f"{field.shape} before"
            )
        return array

    def pack_item(self, item: Any, number: int) -> NDArray[Any] | bytes:
        assert self._form is not None
        return self._form.packed(item, f"{self.text}: the image of row {number}")

    def close(self) -> None:
        self._table.close()

    def _image_form(self, options: OriginOptions) -> ImageForm | None:
        if len(self._columns) != 1 or not holds_bytes(self._table.kind(self._columns[0])):
            return None
        return choose_form(self._peeks(), options)

    def _peeks(self) -> Iterator[Peek]:
        for group in self._table.groups:
            for row, content in zip(group.rows, self._images(group), strict=True):
                if not content:
                    raise UserError(
                        f"{self._table.where(row)}, column {self._columns[0]!r}: no image"
                    )
                yield peek(content, f"{self.text}: the image of row {row}")

    def _images(self, group: RowGroup) -> list[bytes]:
        name = self._columns[0]
        column = self._table.column(group, name)
        if not holds_bytes(column.type):
            raise UserError(f"{group}, column {name!r} holds {column.type}, and images before")
        return [v["bytes"] if isinstance(v, dict) else v for v in column.to_pylist()]

    def _array_field(self) -> Field:
        dtypes = [self._table.dtype(name) for name in self._columns]
        for name, dtype in zip(self._columns, dtypes, strict=True):
            if dtype.kind == "O":
                raise UserError(self._refusal(name, "text"))
        dtype = np.result_type(*dtypes)
        dtype = np.dtype(np.float32) if dtype == np.float64 else dtype
        shape = self._array(self._table.groups[0], dtype).shape[1:]
        return Field(name="inputs", dtype=dtype.name, shape=list(shape))

    def _array(self, group: RowGroup, dtype: np.dtype[Any]) -> NDArray[Any]:
        """(n, …): one column of lists as it is, several of numbers side by side."""
        parts = []
        for name in self._columns:
            values = self._table.read(group, name)
            if len(self._columns) > 1 and values.ndim > 1:
                raise UserError(self._refusal(name, "lists beside other columns"))
            parts.append(check_rounded(f"column {name!r}", values, dtype, self.notes))
        return parts[0] if parts[0].ndim > 1 else np.stack(parts, axis=1)

    def _refusal(self, name: str, what: str) -> str:
        return (
            f"{self._table.groups[0].path}, column {name!r} holds {what}\n"
            "name columns of numbers with --inputs, or one of lists or images"
        )


def _joined(values: Sequence[NDArray[Any]], locations: TargetLocations) -> NDArray[Any]:
    try:
        return np.concatenate(values)
    except ValueError as error:
        raise UserError(f"{locations.source}: {error}") from error
