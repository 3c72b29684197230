"""Distribution of samples over ranks and steps: a pure function of (seed, epoch, rank, size).

The global batch is formed first and sharded over the ranks second, so the number of ranks changes
which rank computes a sample, never which update it belongs to.

A windowed shuffle keeps reads local: every epoch the shards are permuted and grouped into windows,
and the samples within a window are permuted. Reads then stay within few files at a time, which a
cache or the node's local disk can hold. The cost is less variety: a batch comes from few shards
(docs/data.md says how much).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.data.hashing import hash_seed


def epoch_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch, (num_samples,) int64, the same on every rank."""
    return torch.randperm(num_samples, generator=epoch_generator(seed, epoch), device="cpu")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return a random generator unique to (seed, epoch)."""
    return torch.Generator().manual_seed(hash_seed(seed, epoch))


def num_batches(num_samples: int, global_batch_size: int) -> int:
    """Return the number of updates in an epoch, including a smaller last batch."""
    return -(-num_samples // global_batch_size)


def shard_windows(num_shards: int, window: int, seed: int, epoch: int) -> list[list[int]]:
    """Return the shards of each window, in reading order: `window` shards each, the rest in the
    last; the same on every rank."""
    order = torch.randperm(
        num_shards, generator=epoch_generator(seed, epoch), device="cpu"
    ).tolist()
    return [order[start : start + window] for start in range(0, num_shards, window)]


def windowed_order(first_samples: Sequence[int], window: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch, shuffled within windows: (num_samples,) int64.

    first_samples: number of the first sample of each shard, then the number of samples.
    """
    generator = epoch_generator(seed, epoch)
    torch.randperm(
        len(first_samples) - 1, generator=generator, device="cpu"
    )  # advance past the draw of `shard_windows`
    parts = []
    for shards in shard_windows(len(first_samples) - 1, window, seed, epoch):
        samples = torch.cat([torch.arange(*first_samples[s : s + 2], device="cpu") for s in shards])
        parts.append(samples[torch.randperm(len(samples), generator=generator, device="cpu")])
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device="cpu")
