"""The interface of all storage formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Rows = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Number and size of the samples, and samples per shard."""

    num_samples: int
    sample_bytes: int
    shard_samples: int


class Store(Protocol):
    """Stored samples. Used by one thread, unless `is_shareable`."""

    is_shareable: bool

    def read(self, indices: Indices) -> Rows:
        """Return (n, sample_bytes); row i is sample indices[i]."""

    def close(self) -> None: ...


class Write(Protocol):
    def __call__(self, folder: Path, shape: Shape, blocks: Iterator[Rows]) -> None:
        """Write all samples, in blocks of (n, sample_bytes), into an empty folder."""


class Open(Protocol):
    def __call__(self, folder: Path, shape: Shape) -> Store: ...


def shards_of(shape: Shape, blocks: Iterator[Rows]) -> Iterator[Iterator[Rows]]:
    """Yield the samples shard by shard. Each shard must be consumed before the next."""
    left: Rows | None = None

    def shard(wanted: int) -> Iterator[Rows]:
        nonlocal left
        while wanted:
            block = left if left is not None else next(blocks)
            taken, rest = block[:wanted], block[wanted:]
            left = rest if len(rest) else None
            wanted -= len(taken)
            yield taken

    for first in range(0, shape.num_samples, shape.shard_samples):
        yield shard(min(shape.shard_samples, shape.num_samples - first))
