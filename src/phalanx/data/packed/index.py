"""Schema of `index.json`, the index of packed data beside its shards. No torch, no MPI.

A pack is a folder with one folder a split (`train`, `validation`), each with an index and shards:

    flowers/train/index.json
    flowers/train/shard-00000.npy           (n,) of `table_dtype`: CRC-32, and end, of every part
    flowers/train/shard-00000.targets.npy   (n, …): a field whose samples have one size
    flowers/train/shard-00000.inputs.bin    a field of images, or of arrays that differ in shape: a
                                            file of PNG, JPEG or NumPy's each, one after the other
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from phalanx.records.regular_file import FileName

SCHEMA_VERSION = 2
INDEX = "index.json"

Encoding = Literal["raw", "png", "jpeg"]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One part of every sample, such as `inputs` and `targets`."""

    name: str
    """Name of the field."""
    dtype: str
    """NumPy's name of the type of its values."""
    shape: list[int] | None
    """Shape of one sample, once decoded; None: samples differ in shape."""
    encoding: Encoding = "raw"
    """Bytes that are packed: `raw`, those of the array in C order, or a file of `png` or `jpeg`."""
    mean: list[float] | None = None
    """Mean of the values: one for all, or one for each of `shape[0]`; None: not measured."""
    deviation: list[float] | None = None
    """Standard deviation of the values, as `mean`."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    sha256: str


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    num_samples: int
    files: list[File]  # the table of checksums, then as `file_names` has them


class PackIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`index.json`: written last, so that a pack without one is not complete."""

    schema: int = SCHEMA_VERSION
    fields: list[Field]
    shards: list[Shard]
    num_samples: int
    classes: list[str] = []  # names of the targets, where they are classes
    source: str = ""  # origin of the data, for people
    splits: dict[FileName, int] = {}  # samples of each split of its pack; none: it is alone
    sha256: str = ""  # SHA-256 of this very index without it


def file_names(fields: Sequence[Field], number: int) -> list[str]:
    """Return the file names of one shard: the table of checksums first, then a file per field."""
    stem = f"shard-{number:05d}"
    endings = {field.name: "bin" if sample_bytes(field) is None else "npy" for field in fields}
    return [f"{stem}.npy", *(f"{stem}.{name}.{ending}" for name, ending in endings.items())]


def table_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """Return the dtype of a shard's table: of each field the CRC-32 of a sample, and where samples
    differ in size the byte of the field's file at which the sample ends."""
    columns: list[tuple[str, str]] = []
    for field in fields:
        columns.append((f"{field.name}.crc", "<u4"))
        if sample_bytes(field) is None:
            columns.append((f"{field.name}.end", "<i8"))
    return np.dtype(columns)


def element(field: Field) -> np.dtype[Any]:
    """Return the dtype of a field on disk: little-endian."""
    return np.dtype(field.dtype).newbyteorder("<")


def sample_bytes(field: Field) -> int | None:
    """Return the packed bytes of one sample; None where samples differ."""
    if field.encoding != "raw" or field.shape is None:
        return None
    return math.prod(field.shape) * element(field).itemsize
