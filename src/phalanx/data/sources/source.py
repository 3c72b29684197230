"""Source of batches: a rank's part of every global batch, from samples of any kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from phalanx.data.sampler import EpochPlace, GlobalBatches, RankBatch, evaluation_shard
from phalanx.data.samples import Samples
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


class Source:
    """Training and validation batches of one rank, from `Samples` that are pairs of inputs and
    targets. Every rank has its own."""

    skips_damaged = False
    """Damaged samples may be left out, so ranks must agree on the size of a batch."""

    def __init__(
        self, train: Samples, validation: Samples, *, name: str, reason: str, shape: DataShape
    ) -> None:
        """reason: which data this is and why, one sentence for the user."""
        self._train, self._validation = train, validation
        self.name, self.reason, self.shape = name, reason, shape
        self.num_train, self.num_validation = len(train), len(validation)
        self.order = f"{self.num_train} samples of {name} at random"
        """Description of the order of an epoch's samples, without the seed."""
        self.position = (0, 0)
        """Epoch, and the number of its samples loaded so far, over all ranks."""

    def train_batches(self, **place: Unpack[EpochPlace]) -> Iterator[LoadedBatch]:
        """Yield the rank's samples of every global batch of an epoch; the order depends on (seed,
        epoch) alone."""
        seed, epoch, asked = place["seed"], place["epoch"], deque[RankBatch]()
        order = self._epoch_order(seed, epoch)

        def indices() -> Iterator[Tensor]:
            for batch in GlobalBatches(num_samples=self.num_train, order=order, **place):
                asked.append(batch)
                yield batch.indices

        self.position = epoch, place.get("first_sample", 0)
        for inputs, targets in self._train_samples(epoch).batches(indices()):
            batch = asked.popleft()
            yield self._load(inputs, targets, len(batch.indices), batch.global_size)
            self.position = epoch, self.position[1] + batch.global_size

    def validation_batches(
        self, *, rank: int, num_ranks: int, batch_size: int
    ) -> Iterator[LoadedBatch]:
        """Yield this rank's shard of the validation data; each sample is on one rank. Every rank
        gets the same number of batches; `global_size` is that of the local batch."""
        parts = [
            torch.arange(part.start, part.stop, device="cpu")
            for part in evaluation_slices(self.num_validation, rank, num_ranks, batch_size)
        ]
        for part, data in zip(parts, self._validation.batches(parts), strict=True):
            inputs, targets = data
            yield self._load(inputs, targets, len(part), len(targets))

    def notices(self) -> list[str]:
        """Return notices for the user since the last call; each rank has its own."""
        return []

    def close(self) -> None:
        """End the readers."""

    def _train_samples(self, epoch: int) -> Samples:  # noqa: ARG002
        return self._train

    def _epoch_order(self, seed: int, epoch: int) -> Tensor | None:  # noqa: ARG002
        """Return the order of an epoch's samples; None: all at random."""
        return None

    def _padding(self, inputs: Tensor) -> Tensor:
        """Return an input for a rank without samples, whose batch is `inputs`, (0, …)."""
        return inputs.new_zeros(1, *inputs.shape[1:])

    def _load(self, inputs: Tensor, targets: Tensor, asked: int, global_size: int) -> LoadedBatch:
        number = len(targets)
        if not number:
            inputs = self._padding(inputs)
            targets = targets.new_full((1, *targets.shape[1:]), IGNORED)
        return LoadedBatch(inputs, targets, number, global_size, asked - number)


def evaluation_slices(
    num_samples: int, rank: int, num_ranks: int, batch_size: int
) -> Iterator[slice]:
    """Yield a rank's evaluation batches as slices; every rank gets the same number, so the last may
    be empty: ranks that share a model predict together."""
    local = evaluation_shard(num_samples, rank, num_ranks)
    longest = -(-num_samples // num_ranks)
    for offset in range(0, longest, batch_size):
        start = min(local.start + offset, local.stop)
        yield slice(start, min(start + batch_size, local.stop))
