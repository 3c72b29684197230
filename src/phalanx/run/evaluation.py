"""Evaluation of a program's model: every sample once, on any number of ranks, which sum numbers
whatever their order. Packs are opened for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed
from phalanx.data.sampler import epoch_order
from phalanx.data.samples import PartialBatch, Samples
from phalanx.data.sources.packed import Packed
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.run.device import CPU, copy_to
from phalanx.run.order import DrawnOrder, reading_options, takes_all
from phalanx.run.packed import PackedSamples
from phalanx.run.randomness import generators_kept, seed_generators
from phalanx.run.samples import ChosenSamples, samples_of, samples_of_dataset, seeded_samples
from phalanx.run.setup import RunSetup

Reduction = Literal["mean", "sum"]
Evaluated = Tensor | float | Mapping[str, Tensor | float]


def evaluate(
    strategy: Strategy,
    function: Callable[[nn.Module, Any], Evaluated],
    samples: Samples,
    *,
    batch_size: int,
    reduction: Reduction,
    seed: int,
    device: torch.device,
) -> Any:
    """Return the mean, or the sum, of `function` over all samples; a dictionary where it returns
    one. Collective.

    function: of the model, in evaluation mode and under no_grad, and of a batch of samples.
    batch_size: of a rank, at most. seed: of what the function draws, in a bitwise run.
    device: of model and batches.
    Raises: UserError when there are no samples.
    """
    if reduction not in get_args(Reduction):
        raise UserError(f"run.evaluate: reduction={reduction!r} is neither mean nor sum")
    if type(batch_size) is not int or batch_size < 1:
        raise UserError(f"run.evaluate: batch_size={batch_size!r} is not a whole number from 1")
    if not len(samples):
        raise UserError("run.evaluate: data has no samples")
    indices = _indices_of(strategy, len(samples), batch_size)
    counted = len(indices) if strategy.counts_samples else 0
    if strategy.role == "server":
        indices = []
    if strategy.meets_in_passes:
        most = len(_indices_of(strategy, len(samples), batch_size, data_rank=0))
        indices += [torch.zeros(1, dtype=torch.int64, device="cpu")] * (most - len(indices))
    model = strategy.model
    called = strategy.module if strategy.makes_steps else model
    modes = [(module, module.training) for module in model.modules()]
    strategy.synchronize_buffers()
    sums: dict[str, list[float]] = {}
    is_mapping, num_counted = False, 0
    model.eval()
    try:
        with torch.no_grad(), generators_kept():
            batches = zip(indices, samples.batches(indices), strict=True)
            for position, (chosen, batch) in enumerate(batches):
                if strategy.num_blocks is not None:
                    seed_generators(hash_seed(seed, int(chosen[0])))
                weight = len(chosen)
                if isinstance(batch, PartialBatch):
                    weight, batch = batch.num_samples, batch.data
                if device != CPU:
                    batch = copy_to(device, batch)
                num_counted += weight if position < counted else 0
                values = function(called, batch)
                strategy.end_forward()
                is_mapping = isinstance(values, Mapping)
                weight = weight if reduction == "mean" else min(1, weight)
                named = values if isinstance(values, Mapping) else {"": values}
                for name, value in named.items():
                    number, own = _number(name, value), sums.setdefault(name, [])
                    if position < counted:
                        own.append(weight * number)
    finally:
        for module, is_training in modes:
            module.training = is_training
    divisor = float(len(samples))
    if getattr(samples, "skips_damaged", False):
        divisor = strategy.group.sum([num_counted])[0]
    divisor = divisor if reduction == "mean" else 1
    return _over_ranks(strategy.group, sums, divisor, is_mapping=is_mapping)


def _indices_of(
    strategy: Strategy, num_samples: int, batch_size: int, data_rank: int | None = None
) -> list[Tensor]:
    """Return the batches of a rank. data_rank: its part of the data; None: this one's.

    Parts are given from the last on: rank 0, which names the results, always has samples, and none
    has more batches.
    """
    number = strategy.num_blocks or strategy.data_size
    data_rank = strategy.data_rank if data_rank is None else data_rank
    blocks = [
        share_of(number - 1 - block, number, num_samples)
        for block in share_of(data_rank, strategy.data_size, number)
    ]
    return [
        torch.arange(start, min(start + batch_size, own.stop), device="cpu")
        for own in blocks
        for start in range(own.start, own.stop, batch_size)
    ]


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise UserError(
            f"run.evaluate: the function returned a {type(value).__name__}{shape}"
            f"{f' as {name!r}' if name else ''}: return a number over the samples of the batch, "
            "such as their mean, or a dictionary of numbers"
        ) from error


def _over_ranks(
    group: RunGroup, sums: dict[str, list[float]], divisor: float, *, is_mapping: bool
) -> Any:
    """Add up the sums of the ranks, of which some may have had no samples."""
    is_mapping, names = json.loads(group.share(json.dumps([is_mapping, list(sums)])))
    totals = sum_over_ranks(group, [sums.get(name, []) for name in names])
    values = {name: total / divisor for name, total in zip(names, totals, strict=True)}
    return values if is_mapping else values[""]


def sum_over_ranks(group: RunGroup, columns: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum of each column over the ranks, rounded once: the same however numbers are
    spread over them. Collective.

    columns: of this rank, equally many on each, of any lengths. Cost: rank 0 gets every number.
    """
    longest = max(map(len, columns), default=0)
    widths = group.gather([longest])
    width = 1 + int(group.share("" if widths is None else str(int(max(row[0] for row in widths)))))
    rows = group.gather([part for own in columns for part in [*own, *[0.0] * (width - len(own))]])
    text = ""
    if rows is not None:
        totals = [
            sum_of([row[column] for row in rows for column in range(start, start + width)])
            for start in range(0, len(columns) * width, width)
        ]
        text = " ".join(total.hex() for total in totals)
    return [float.fromhex(word) for word in group.share(text).split()]


def sum_of(values: Sequence[float]) -> float:
    """Return the sum, rounded once (Shewchuk 1997, doi:10.1007/PL00009321); of values that are not
    finite, what floats make of them."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


class EvaluatedData:
    """Samples of a run's evaluations; packs stay open until it is closed."""

    def __init__(self, setup: RunSetup, strategy: Strategy) -> None:
        self._setup, self._source, self._group = setup, setup.batches.source, strategy.group
        self._seeds_samples = strategy.num_blocks is not None  # seeds depend on (seed, sample)
        self._packs: dict[Packed, PackedSamples] = {}

    def of(self, data: object) -> Samples:
        """Return the samples of what a program gives. Collective."""
        if isinstance(data, Packed):
            samples: Samples = self._pack(data).validation()
        elif isinstance(data, DataLoader):
            samples = self._loaded(data)
        else:
            samples = samples_of(data, self._setup.batches.loading, split="validation")
        return seeded_samples(samples, self._setup.seed) if self._seeds_samples else samples

    def _loaded(self, loader: DataLoader[Any]) -> Samples:
        """Return the samples that a loader's sampler gives, each as often. Collective."""
        samples = samples_of_dataset(loader.dataset, reading_options(loader))
        if takes_all(loader):
            return samples
        order = DrawnOrder(loader, len(samples), seed=self._setup.seed, steps=None, drawn={})
        drawn = order.draw(0)
        order.check_same(drawn, self._group)
        return ChosenSamples(samples, drawn.indices)

    def some(self, number: int) -> Samples:
        """Return so many of the training samples, or all: the same for every seed.

        Raises: UserError for data that are not read by number.
        """
        if not isinstance(self._source, Samples):
            raise UserError("run.some_samples is for data with __getitem__")
        return ChosenSamples(self._source, epoch_order(len(self._source), 0, 0)[:number])

    def _pack(self, data: Packed) -> PackedSamples:
        """Return a pack that is open: the run's, or another one. Collective."""
        if isinstance(self._source, PackedSamples) and self._source.packed == data:
            return self._source
        if data not in self._packs:
            made = self._packs[data] = PackedSamples(data)
            seed, timeout_s = self._setup.seed, self._setup.ranks.timeout_s
            made.open(self._group, seed=seed, epochs=1, timeout_s=timeout_s)
        return self._packs[data]

    def close(self) -> None:
        """End the readers of packs."""
        for source in (self._source, *self._packs.values()):
            if isinstance(source, PackedSamples):
                source.close()
