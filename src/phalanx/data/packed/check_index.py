"""Validation of a pack's index, before a file is opened or memory is allocated from it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field, PackIndex, Shard, file_names, sample_bytes, table_dtype
from phalanx.data.packed.shard_writers import Rows
from phalanx.errors import UserError

MAX_HEADER_BYTES = 1 << 16
MAX_BYTES = 1 << 50  # no sample, no shard
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_fields(fields: Sequence[Field]) -> None:
    """Raises: UserError for a field that no pack can have, naming it."""
    names = [field.name for field in fields]
    if not names or len(set(names)) != len(names):
        raise UserError(f"a pack needs fields with different names, not {names}")
    for field in fields:
        fault = _fault_of_field(field)
        if fault:
            raise UserError(f"field {field.name!r} cannot be packed: {fault}")


def check_index(index: PackIndex, path: Path) -> None:
    """Raises: UserError, naming `path` and the numbers that do not fit each other."""
    counted = sum(shard.num_samples for shard in index.shards)
    try:
        check_fields(index.fields)
        if index.num_samples < 1 or counted != index.num_samples:
            raise UserError(f"its shards have {counted} samples together, not {index.num_samples}")
        for number, shard in enumerate(index.shards):
            _check_shard(index, number, shard)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _fault_of_field(field: Field) -> str:
    if not _NAME.fullmatch(field.name):
        return "a name is made of letters, digits, - and _"
    try:
        dtype = np.dtype(field.dtype)
    except TypeError:
        return f"there is no dtype {field.dtype!r}"
    if dtype.kind not in "biufc":
        return f"its dtype {field.dtype} is not one of numbers"
    shape = field.shape
    if shape is not None and (
        len(shape) > 8
        or any(size < 0 for size in shape)
        or math.prod(shape) * dtype.itemsize > MAX_BYTES
    ):
        return f"its shape {shape} is none of a sample"
    if field.encoding != "raw" and dtype != np.uint8:
        return f"{field.encoding} holds uint8, not {field.dtype}"
    if (
        field.encoding != "raw"
        and shape is not None
        and (len(shape) != 3 or shape[0] not in (1, 3))
    ):
        return f"{field.encoding} holds (1 or 3, height, width), not {shape}"
    return ""


def _check_shard(index: PackIndex, number: int, shard: Shard) -> None:
    expected = file_names(index.fields, number)
    names = [file.name for file in shard.files]
    if names != expected:
        raise UserError(f"shard {number} has the files {names}, expected {expected}")
    if shard.num_samples < 1:
        raise UserError(f"shard {number} has {shard.num_samples} samples")
    sizes = [table_dtype(index.fields).itemsize, *map(sample_bytes, index.fields)]
    for file, size in zip(shard.files, sizes, strict=True):
        header = file.bytes - shard.num_samples * (size or 0)
        if not 0 < header <= (MAX_BYTES if size is None else MAX_HEADER_BYTES):
            raise UserError(
                f"{file.name} is said to have {file.bytes} bytes for {shard.num_samples} samples"
            )


def check_rows(fields: Sequence[Field], rows: Rows) -> int:
    """Return the number of rows.

    Raises: ValueError, naming the field, what was expected and what came.
    """
    expected = {field.name for field in fields}
    if set(rows) != expected:
        raise ValueError(f"a sample has the fields {sorted(expected)}, not {sorted(rows)}")
    counts = {name: len(part) for name, part in rows.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"fields have different numbers of rows: {counts}")
    for field in fields:
        parts = rows[field.name]
        are_alike = isinstance(parts, np.ndarray) and sample_bytes(field) is not None
        for part in parts[:1] if are_alike else parts:
            _check_part(field, part)
    return next(iter(counts.values()))


def _check_part(field: Field, array: NDArray[Any] | bytes) -> None:
    if isinstance(array, bytes):
        if field.encoding == "raw" or not array:
            raise ValueError(f"{field.name!r} takes an array of {field.dtype}, not bytes")
        return
    if field.encoding != "raw":
        raise ValueError(f"{field.name!r} takes the bytes of a {field.encoding}, not an array")
    expected, shape = "any shape" if field.shape is None else tuple(field.shape), np.shape(array)
    if array.dtype != np.dtype(field.dtype) or (field.shape is not None and shape != expected):
        raise ValueError(
            f"{field.name!r} takes {field.dtype} of {expected}, not {array.dtype} of {shape}"
        )
