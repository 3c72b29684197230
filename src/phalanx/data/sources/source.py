"""Where a run's batches come from: data in memory, or read while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from phalanx.models.options import DataShape

IGNORED = -100
"""A target that counts for nothing, as PyTorch's losses have it."""


class Loaded(NamedTuple):
    """One rank's part of a global batch, in memory."""

    inputs: Tensor
    """(n, …), n at least 1: a rank that a small last batch leaves nothing for borrows a sample."""

    targets: Tensor
    """(n, …) int64; `IGNORED` of a borrowed sample."""

    num_samples: int
    """Of these, without the borrowed one."""

    global_size: int
    """Samples of the whole batch, over all ranks, damaged ones included."""

    num_damaged: int = 0
    """Of this rank's part, left out here because they are not as they were packed."""


class Source(Protocol):
    """Training and validation samples. Every rank has one of its own."""

    name: str
    reason: str
    """Which data this is and why, one sentence for the user."""
    shape: DataShape
    num_train: int
    num_validation: int
    skips_damaged: bool
    """Whether samples may be left out, so that ranks have to agree how many a batch has."""
    order: str
    """How an epoch's samples are ordered, in words; the seed is not among them."""

    def train_batches(
        self,
        *,
        seed: int,
        epoch: int,
        global_batch_size: int,
        rank: int,
        num_ranks: int,
        first_sample: int = 0,
    ) -> Iterator[Loaded]:
        """The rank's part of every global batch of an epoch, whose order depends on (seed, epoch)
        alone. first_sample: how many of the epoch all ranks together have seen before."""

    def validation_batches(self, *, rank: int, num_ranks: int, batch_size: int) -> Iterator[Loaded]:
        """This rank's part of the validation data; each sample is one rank's. As many batches on
        every rank; `global_size` is that of the rank's own part."""

    def notices(self) -> list[str]:
        """Return notices for the user since the last call; each rank has its own."""

    def close(self) -> None:
        """End the readers."""
