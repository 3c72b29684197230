"""Distribution of samples over ranks and steps: a pure function of (seed, epoch, rank, size).

The global batch is formed first and sharded over the ranks second, so the number of ranks changes
which rank computes a sample, never which update it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """One rank's samples of one global batch."""

    indices: Tensor
    """(n,) int64; empty when the global batch has fewer samples than there are ranks."""

    global_size: int
    """Samples of the batch over all ranks, by which the loss is divided."""


class EpochPlace(TypedDict):
    """Epoch, batches and position of a rank, the arguments of `Source.train_batches`."""

    seed: int
    epoch: int
    global_batch_size: int
    rank: int
    num_ranks: int
    first_sample: NotRequired[int]
    """Samples of the epoch already seen, over all ranks."""
    micro_batches: NotRequired[int]
    """Into which a global batch is cut first; a rank has consecutive ones. Left out: one a rank."""
    own: NotRequired[Sequence[int]]
    """Micro-batches that the rank has in place of consecutive ones, in the order of its samples."""


@dataclass(frozen=True, kw_only=True)
class GlobalBatches:
    """The batches of one epoch as one rank sees them; the last one may be smaller.

    Concatenating the ranks' shards of a batch in rank order gives the batch of a sequential run.
    The position in an epoch is the number of samples seen by all ranks together, which is valid
    for any number of ranks.
    """

    num_samples: int
    global_batch_size: int
    seed: int
    epoch: int
    rank: int
    num_ranks: int
    first_sample: int = 0
    """Samples of the epoch already seen."""
    micro_batches: int | None = None
    """Into which a batch is cut first, of which a rank has consecutive ones; None: one a rank."""
    own: Sequence[int] | None = None
    """Micro-batches that the rank has; None: consecutive ones, as many as the others."""
    order: Tensor | None = None
    """(num_samples,) int64; None: all samples at random, by (seed, epoch)."""

    def __len__(self) -> int:
        return num_batches(self.num_samples - self.first_sample, self.global_batch_size)

    def __iter__(self) -> Iterator[RankBatch]:
        order = self.order
        if order is None:
            order = epoch_order(self.num_samples, self.seed, self.epoch)
        for start in range(self.first_sample, self.num_samples, self.global_batch_size):
            stop = min(start + self.global_batch_size, self.num_samples)
            local = self._local(start, stop)
            indices = order[local.start : local.stop]
            if self.own is not None and self.micro_batches is not None:
                parts = [shard(start, stop, each, self.micro_batches) for each in self.own]
                indices = torch.cat([order[part.start : part.stop] for part in parts])
            yield RankBatch(indices=indices, global_size=stop - start)

    def _local(self, start: int, stop: int) -> range:
        """Return the rank's samples of a batch [start, stop)."""
        number = self.micro_batches
        if number is None:
            return shard(start, stop, self.rank, self.num_ranks)
        own = share_of(self.rank, self.num_ranks, number)
        first, last = shard(start, stop, own[0], number), shard(start, stop, own[-1], number)
        return range(first.start, last.stop)


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
