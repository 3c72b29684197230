"""Samples to evaluate a program's model on, opened and brought where the model is."""

from __future__ import annotations

from phalanx.data.sampler import epoch_order
from phalanx.data.samples import Samples
from phalanx.data.sources.packed import Packed
from phalanx.errors import UserError
from phalanx.parallel.strategy import Strategy
from phalanx.run.device import CPU, SamplesOnDevice
from phalanx.run.evaluation import samples_to_evaluate
from phalanx.run.packed import PackedSamples
from phalanx.run.plan import RunPlan
from phalanx.run.samples import ChosenSamples, seeded_samples


class EvaluatedData:
    """Samples of a run's evaluations; packs stay open until it is closed."""

    def __init__(self, plan: RunPlan, strategy: Strategy) -> None:
        self._source, self._group, self._setup = plan.batches.source, strategy.group, plan.setup
        self._loading = plan.batches.loading
        self._seeds_samples = strategy.num_blocks is not None  # of (seed, sample)
        self._packs: dict[Packed, PackedSamples] = {}

    def of(self, data: object) -> Samples:
        """Return the samples of what a program gives. Collective."""
        if isinstance(data, Packed):
            samples: Samples = self._pack(data).validation()
        else:
            seed, group = self._setup.seed, self._group
            samples = samples_to_evaluate(data, self._loading, seed=seed, group=group)
        if self._seeds_samples:
            samples = seeded_samples(samples, self._setup.seed)
        device = self._setup.device
        return samples if device == CPU else SamplesOnDevice(samples, device)

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
            timeout_s = self._setup.ranks.timeout_s
            made.open(self._group, seed=self._setup.seed, epochs=1, timeout_s=timeout_s)
        return self._packs[data]

    def close(self) -> None:
        """End the readers of packs."""
        for source in (self._source, *self._packs.values()):
            if isinstance(source, PackedSamples):
                source.close()
