"""Distribution of samples over ranks and steps: a pure function of (seed, epoch, rank, size).

The global batch is formed first and sharded over the ranks second, so the number of ranks changes
which rank computes a sample, never which update it belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed


def epoch_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch, (num_samples,) int64, the same on every rank."""
    return torch.randperm(num_samples, generator=epoch_generator(seed, epoch), device="cpu")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return a random generator unique to (seed, epoch)."""
    return torch.Generator().manual_seed(hash_seed(seed, epoch))


def shard(start: int, stop: int, rank: int, world_size: int) -> range:
    """Return the rank's contiguous shard of [start, stop); shards differ in size by at most one.

    Raises: ValueError when `rank` is not one of `world_size` ranks.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks")
    share = share_of(rank, world_size, stop - start)
    return range(start + share.start, start + share.stop)


def num_batches(num_samples: int, global_batch_size: int) -> int:
    """Return the number of updates in an epoch, including a smaller last batch."""
    return -(-num_samples // global_batch_size)


def evaluation_shard(num_samples: int, rank: int, world_size: int) -> range:
    """Return the samples that this rank evaluates: each on exactly one rank, without padding."""
    return shard(0, num_samples, rank, world_size)
