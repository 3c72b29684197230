"""Values that stand for none, and chunks that are not there, in files of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import UserError

MARKS = ("_FillValue", "missing_value")
"""Attributes by which NetCDF, which is HDF5 inside, names values that stand for none."""


def absent_values(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values that stand for none, of the attributes of an array of `dtype`."""
    marks = [attributes[name] for name in MARKS if attributes.get(name) is not None]
    values = [value for mark in marks for value in np.atleast_1d(mark).tolist()]
    found = np.array([value for value in values if isinstance(value, int | float)])
    return found.astype(dtype) if dtype.kind == "f" else found


def check_present(path: Path, name: str, start: int, missing: NDArray[np.bool_]) -> None:
    """Raises: UserError naming the first row with a value that is missing. start: its first row."""
    if missing.any():
        row = int(np.argmax(missing.reshape(len(missing), -1).any(axis=1)))
        raise UserError(
            f"{path}, {name} row {start + row}: it has no value, or one that means so\n"
            "fill it in first, or pack what a function yields, my_data.py:samples"
        )


def lost_chunks(name: str, found: int, expected: int, value: object) -> Iterable[str]:
    """Yield the sentence about chunks that are not there, if any."""
    if found < expected:
        yield (
            f"{name}: {expected - found:,} of {expected:,} chunks are not there, and are packed as "
            f"{value}"
        )
