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

    @property
    def num_shards(self) -> int:
        return -(-self.num_samples // self.shard_samples)


class Store(Protocol):
    """Stored samples, read by any number of threads."""

    def read(self, indices: Indices) -> Rows:
        """Return (n, sample_bytes); row i is sample indices[i]."""

    def close(self) -> None: ...


class Write(Protocol):
    def __call__(self, folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
        """Write all samples, a shard of (n, sample_bytes) at a time, into an empty folder."""


class Open(Protocol):
    def __call__(self, folder: Path, shape: Shape) -> Store: ...
