"""Where a run's batches come from: data in memory, or read while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from phalanx.models.options import DataShape


class Loaded(NamedTuple):
    """One rank's part of a global batch, in memory."""

    inputs: Tensor
    """(n, …); n is 0 when a small last batch leaves nothing for this rank."""

    targets: Tensor
    """(n, …) int64."""

    global_size: int
    """Samples of the whole batch, over all ranks."""


class Source(Protocol):
    """Training and validation samples. Every rank has one of its own."""

    name: str
    reason: str
    """Which data this is and why, one sentence for the user."""
    shape: DataShape
    num_train: int
    num_validation: int

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

    def validation_batches(
        self, *, rank: int, num_ranks: int, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Inputs, targets and number of samples of this rank's part; each sample is one rank's.
        As many batches on every rank; one that has nothing left borrows a sample, which counts for
        nothing (its targets are IGNORED, its number 0)."""

    def close(self) -> None: ...
