"""Samples to evaluate a program's model on, opened and brought where the model is."""

from __future__ import annotations

from typing import Any

import torch

from phalanx.data.sampler import epoch_order
from phalanx.data.samples import Samples
from phalanx.data.sources.packed import Packed
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.device import CPU, SamplesOnDevice
from phalanx.run.evaluation import samples_to_evaluate
from phalanx.run.packed import PackedSamples
from phalanx.run.samples import ChosenSamples, seeded_samples
from phalanx.run.source import Source


class EvaluatedData:
    """Samples of a run's evaluations; packs stay open until it is closed."""

    def __init__(
        self,
        source: Source,
        group: RunGroup,
        *,
        loading: dict[str, Any],
        seed: int,
        device: torch.device,
        timeout_s: float,
        seeds_samples: bool,
    ) -> None:
        """source, loading, seed: of the run's own data. seeds_samples: each has random numbers of
        (seed, sample)."""
        self._source, self._group, self._loading = source, group, loading
        self._seed, self._device, self._timeout_s = seed, device, timeout_s
        self._seeds_samples = seeds_samples
        self._packs: dict[Packed, PackedSamples] = {}

    def of(self, data: object) -> Samples:
        """Return the samples of what a program gives. Collective."""
        if isinstance(data, Packed):
            samples: Samples = self._pack(data).validation()
        else:
            samples = samples_to_evaluate(data, self._loading, seed=self._seed, group=self._group)
        if self._seeds_samples:
            samples = seeded_samples(samples, self._seed)
        return samples if self._device == CPU else SamplesOnDevice(samples, self._device)

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
            made.open(self._group, seed=self._seed, epochs=1, timeout_s=self._timeout_s)
        return self._packs[data]

    def close(self) -> None:
        """End the readers of packs."""
        for source in (self._source, *self._packs.values()):
            if isinstance(source, PackedSamples):
                source.close()
