"""Validation of samples against the fields of a pack, before they are written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Rows, Sample


def check_sample(fields: Sequence[Field], sample: Sample) -> None:
    """Raises: ValueError, naming the field, what was expected and what came."""
    _check_names(fields, sample)
    for field in fields:
        part = sample[field.name]
        if isinstance(part, bytes):
            if field.encoding == "raw" or not part:
                raise ValueError(f"{field.name!r} takes an array of {field.dtype}, not bytes")
        elif field.encoding != "raw":
            raise ValueError(f"{field.name!r} takes the bytes of a {field.encoding}, not an array")
        else:
            _check_array(field, part, part.shape)


def check_rows(fields: Sequence[Field], rows: Rows) -> int:
    """Return the number of rows.

    Raises: ValueError, naming the field, what was expected and what came.
    """
    _check_names(fields, rows)
    counts = {name: len(part) for name, part in rows.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"fields have different numbers of rows: {counts}")
    for field in fields:
        if field.encoding != "raw" or field.shape is None:
            raise ValueError(f"the samples of {field.name!r} differ in size: add them one by one")
        _check_array(field, rows[field.name], rows[field.name].shape[1:])
    return next(iter(counts.values()))


def _check_names(fields: Sequence[Field], given: Collection[str]) -> None:
    expected = {field.name for field in fields}
    if set(given) != expected:
        raise ValueError(f"a sample has the fields {sorted(expected)}, not {sorted(given)}")


def _check_array(field: Field, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    expected = "any shape" if field.shape is None else tuple(field.shape)
    if array.dtype != np.dtype(field.dtype) or (field.shape is not None and shape != expected):
        raise ValueError(
            f"{field.name!r} takes {field.dtype} of {expected}, not {array.dtype} of {shape}"
        )
