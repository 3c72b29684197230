"""Evaluation of a program's model: every sample once, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from phalanx.comm.layout import share_of
from phalanx.data.hashing import hash_seed
from phalanx.data.samples import PartialBatch, Samples
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.run.device import CPU, copy_to
from phalanx.run.exact_sum import sum_over_ranks
from phalanx.run.randomness import generators_kept, seed_generators

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
        raise UserError(f"run.evaluate: batch_size={batch_size!r} is no whole number from 1")
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
