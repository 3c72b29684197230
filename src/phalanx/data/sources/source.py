"""Interface of the sources of batches: data in memory, or read during training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, Unpack

from torch import Tensor

from phalanx.data.sampler import EpochPlace
from phalanx.models.options import DataShape

IGNORED = -100
"""Target value that PyTorch's losses ignore (`ignore_index`)."""


class LoadedBatch(NamedTuple):
    """One rank's samples of a global batch, in memory."""

    inputs: Tensor
    """(n, …), n at least 1: a rank without samples in a small last batch gets a padding sample."""

    targets: Tensor
    """(n, …) int64; `IGNORED` for a padding sample."""

    num_samples: int
    """Number of samples, without the padding sample."""

    global_size: int
    """Samples of the whole batch, over all ranks, damaged ones included."""

    num_damaged: int = 0
    """Number of this rank's samples left out because they are damaged."""


class Source(Protocol):
    """Source of training and validation batches. Every rank has its own."""

    name: str
    reason: str
    """Which data this is and why, one sentence for the user."""
    shape: DataShape
    num_train: int
    num_validation: int
    skips_damaged: bool
    """Damaged samples may be left out, so ranks must agree on the size of a batch."""
    order: str
    """Description of the order of an epoch's samples, without the seed."""

    def train_batches(self, **place: Unpack[EpochPlace]) -> Iterator[LoadedBatch]:
        """Yield the rank's samples of every global batch of an epoch; the order depends on (seed,
        epoch) alone."""

    def validation_batches(
        self, *, rank: int, num_ranks: int, batch_size: int
    ) -> Iterator[LoadedBatch]:
        """Yield this rank's shard of the validation data; each sample is on one rank. Every rank
        gets the same number of batches; `global_size` is that of the local batch."""

    def notices(self) -> list[str]:
        """Return notices for the user since the last call; each rank has its own."""

    def close(self) -> None:
        """End the readers."""
