"""Source of batches from a data set in memory: by index, without per-sample Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor

from phalanx.data.datasets.dataset import Dataset
from phalanx.data.sampler import EpochPlace, GlobalBatches, evaluation_shard
from phalanx.data.sources.source import IGNORED, LoadedBatch


class InMemorySource:
    """A `Source`. Each rank holds the whole data set."""

    skips_damaged = False

    def __init__(self, dataset: Dataset) -> None:
        self._data = dataset
        self.name: str = dataset.name
        self.reason, self.shape = dataset.reason, dataset.shape
        self.num_train = len(dataset.train_targets)
        self.num_validation = len(dataset.validation_targets)
        self.order = f"{self.num_train} samples of {self.name} at random"

    def train_batches(self, **place: Unpack[EpochPlace]) -> Iterator[LoadedBatch]:
        data = self._data
        for batch in GlobalBatches(num_samples=self.num_train, **place):
            num_samples = len(batch.indices)
            indices = batch.indices if num_samples else torch.zeros(1, dtype=torch.int64)
            # Not `train_inputs[indices]`: that takes more than twice as long for the same bytes.
            inputs = data.train_inputs.index_select(0, indices)
            targets = data.train_targets.index_select(0, indices)
            if not num_samples:
                targets.fill_(IGNORED)
            yield LoadedBatch(inputs, targets, num_samples, batch.global_size)

    def validation_batches(
        self, *, rank: int, num_ranks: int, batch_size: int
    ) -> Iterator[LoadedBatch]:
        data = self._data
        for part in evaluation_slices(self.num_validation, rank, num_ranks, batch_size):
            inputs, targets = data.validation_inputs[part], data.validation_targets[part]
            if len(targets):
                yield LoadedBatch(inputs, targets, len(targets), len(targets))
            else:
                yield LoadedBatch(
                    data.validation_inputs[:1], ignored_targets(data.validation_targets[:1]), 0, 0
                )

    def notices(self) -> list[str]:
        return []

    def close(self) -> None:
        """Do nothing: there are no readers."""


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


def ignored_targets(targets: Tensor) -> Tensor:
    """Return targets of the same shape that the loss ignores."""
    return torch.full_like(targets, IGNORED)
