"""Samples to evaluate a program's model on, opened where they are packed."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from phalanx.data.sampler import epoch_order
from phalanx.data.samples import Samples
from phalanx.data.sources.packed import Packed
from phalanx.errors import UserError
from phalanx.parallel.strategy import Strategy
from phalanx.run.data_loader import reading_options, takes_all
from phalanx.run.order import DrawnOrder
from phalanx.run.packed import PackedSamples
from phalanx.run.plan import RunPlan
from phalanx.run.samples import ChosenSamples, samples_of, samples_of_dataset, seeded_samples


class EvaluatedData:
    """Samples of a run's evaluations; packs stay open until it is closed."""

    def __init__(self, plan: RunPlan, strategy: Strategy) -> None:
        self._plan, self._source, self._group = plan, plan.batches.source, strategy.group
        self._seeds_samples = strategy.num_blocks is not None  # of (seed, sample)
        self._packs: dict[Packed, PackedSamples] = {}

    def of(self, data: object) -> Samples:
        """Return the samples of what a program gives. Collective."""
        if isinstance(data, Packed):
            samples: Samples = self._pack(data).validation()
        elif isinstance(data, DataLoader):
            samples = self._loaded(data)
        else:
            samples = samples_of(data, self._plan.batches.loading, split="validation")
        return seeded_samples(samples, self._plan.seed) if self._seeds_samples else samples

    def _loaded(self, loader: DataLoader[Any]) -> Samples:
        """Return the samples that a loader's sampler gives, each as often. Collective."""
        samples = samples_of_dataset(loader.dataset, reading_options(loader))
        if takes_all(loader):
            return samples
        order = DrawnOrder(loader, len(samples), seed=self._plan.seed, steps=None, drawn={})
        drawn = order.draw(0)
        order.check_same(drawn, self._group)
        return ChosenSamples(samples, drawn.indices)

    def some(self, number: int) -> Samples:
        """Return so many of the training samples, or all: the same for every seed.

        Raises: UserError for data that are not read by number.
        """
        if not isinstance(self._source, Samples):
            raise UserError("run.some_samples is for data that are read by number")
        return ChosenSamples(self._source, epoch_order(len(self._source), 0, 0)[:number])

    def _pack(self, data: Packed) -> PackedSamples:
        """Return a pack that is open: the run's, or another one. Collective."""
        if isinstance(self._source, PackedSamples) and self._source.packed == data:
            return self._source
        if data not in self._packs:
            made = self._packs[data] = PackedSamples(data)
            seed, timeout_s = self._plan.seed, self._plan.ranks.timeout_s
            made.open(self._group, seed=seed, epochs=1, timeout_s=timeout_s)
        return self._packs[data]

    def close(self) -> None:
        """End the readers of packs."""
        for source in (self._source, *self._packs.values()):
            if isinstance(source, PackedSamples):
                source.close()
