"""Deterministic samples that neither file systems nor compressors can shrink."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape
from phalanx.bench.io.scaling import Workload

BLOCK_BYTES = 8 * 2**20
SHARD_BYTES = 64 * 2**20
MIN_SHARDS = 4
NUMBER_BYTES = 8


def shape_of(workload: Workload, samples_per_file: int) -> Shape:
    """Return the shape of the data, with at least MIN_SHARDS shards if samples suffice."""
    most = samples_per_file if samples_per_file > 1 else workload.num_samples
    shard = min(most, SHARD_BYTES // workload.sample_bytes, -(-workload.num_samples // MIN_SHARDS))
    return Shape(
        num_samples=workload.num_samples,
        sample_bytes=workload.sample_bytes,
        shard_samples=max(1, shard),
    )


def sample_blocks(shape: Shape, *, part: int) -> Iterator[Rows]:
    """Yield all samples in order, in blocks of (n, sample_bytes). A sample is its index in 8 bytes
    and random bytes, which differ between parts."""
    rows = max(1, BLOCK_BYTES // shape.sample_bytes)
    for first in range(0, shape.num_samples, rows):
        n = min(rows, shape.num_samples - first)
        generator = np.random.Generator(np.random.SFC64([part, first]))
        words = -(-n * shape.sample_bytes // 8)
        flat = generator.integers(0, 2**64, words, np.uint64, endpoint=False).view(np.uint8)
        block = flat[: n * shape.sample_bytes].reshape(n, shape.sample_bytes)
        numbers = np.arange(first, first + n, dtype="<u8")
        block[:, :NUMBER_BYTES] = numbers.view(np.uint8).reshape(n, NUMBER_BYTES)
        yield block


def wrong_samples(rows: Rows, indices: Indices) -> int:
    """Count the rows that are not the requested samples."""
    if len(rows) != len(indices):
        return len(indices)
    numbers = np.ascontiguousarray(rows[:, :NUMBER_BYTES]).view("<u8")[:, 0]
    return int((numbers != indices.astype(np.uint64)).sum())
