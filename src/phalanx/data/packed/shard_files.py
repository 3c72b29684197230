"""Names of a shard's files, and the header of a `.npy` file: pure functions of plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.data.packed.index import Field, Layout

ENDINGS = {"raw": "npy", "png": "png", "jpeg": "jpg"}
"""Of a member of a tar, by which WebDataset knows how to decode it."""

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64


def file_names(layout: Layout, fields: Sequence[Field], number: int) -> list[str]:
    """Return the file names of one shard: checksums first, then the tar or one file per field."""
    stem = f"shard-{number:05d}"
    data = ["tar"] if layout == "tar" else [f"{field.name}.npy" for field in fields]
    return [f"{stem}.npy", *(f"{stem}.{name}" for name in data)]


def element(field: Field) -> np.dtype[Any]:
    """Return the dtype of a field on disk: little-endian."""
    return np.dtype(field.dtype).newbyteorder("<")


def sample_bytes(field: Field) -> int | None:
    """Return the packed bytes of one sample; None where samples differ."""
    if field.encoding != "raw" or field.shape is None:
        return None
    return math.prod(field.shape) * element(field).itemsize


def npy_header(
    dtype: np.dtype[Any], shape: Sequence[int], *, num_bytes: int | None = None
) -> bytes:
    """Return the header of an `.npy` file, version 1.0, padded to a multiple of 64 bytes.

    num_bytes: pad to this size instead.
    Source: NumPy Enhancement Proposal 1.
    """
    sizes = "".join(f"{size}, " for size in shape).strip()
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({sizes}), }}"
    if num_bytes is None:
        num_bytes = -(-(len(_MAGIC) + 2 + len(text) + 1) // _ALIGNMENT) * _ALIGNMENT
    content = text.encode().ljust(num_bytes - len(_MAGIC) - 3) + b"\n"
    return _MAGIC + len(content).to_bytes(2, "little") + content
