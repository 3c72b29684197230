"""Distribution of samples over ranks and steps: a pure function of (seed, epoch, rank, size).

The global batch is formed first and sharded over the ranks second, so the number of ranks changes
which rank computes a sample, never which update it belongs to.
"""

from __future__ import annotations

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
