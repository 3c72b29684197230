"""Schema of `index.json`, the index of packed data beside its shards. No torch, no MPI.

A pack is a folder with one folder a split (`train`, `validation`), each with an index and shards:

    flowers/train/index.json
    flowers/train/shard-00000.tar       layout "tar": WebDataset's: NAME.FIELD, samples in a row
    flowers/train/shard-00000.npy       (n, fields, 3) int64: offset, size, CRC-32 of every part
    flowers/train/shard-00000.inputs.npy, shard-00000.targets.npy         layout "npy"
    flowers/train/shard-00000.npy       (n, fields) uint32: CRC-32 of every part
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1
INDEX = "index.json"

Layout = Literal["tar", "npy"]
Encoding = Literal["raw", "png", "jpeg"]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One part of every sample: `inputs`, `targets`."""

    name: str
    dtype: str  # of NumPy
    shape: list[int] | None  # of one sample, once decoded; None: they differ
    encoding: Encoding = "raw"  # raw: the bytes of the array, in C order
    # Of the values: one for all, or one for each of shape[0]. None: not measured.
    mean: list[float] | None = None
    deviation: list[float] | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    sha256: str


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    num_samples: int
    files: list[File]  # of checksums first, then as `file_names` has them


class PackIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`index.json`: written last, so that a pack without one is not complete."""

    schema: int = SCHEMA_VERSION
    layout: Layout
    fields: list[Field]
    shards: list[Shard]
    num_samples: int
    classes: list[str] = []  # names of the targets, where they are classes
    source: str = ""  # what it was packed from, for people
    sha256: str = ""  # of this very index without it
