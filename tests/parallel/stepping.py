"""A step of a strategy, as a run makes it: for tests of strategies by themselves."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.parallel.loss import LossFunction, join_logits, sum_of_nothing
from phalanx.parallel.step import IGNORED, Batch, StepResult, backward, split_micro_batches
from phalanx.parallel.strategy import Strategy


def cross_entropy_sum(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The loss summed over all targets but the ignored, 0-dim.

    logits: (n, classes) or (n, T, classes); targets: (n,) or (n, T).
    """
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        reduction="sum",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )


class CrossEntropy(LossFunction):
    """Of logits (n, …, classes) and targets (n, …) int64 but the ignored."""

    def __init__(self, smoothing: float = 0.0) -> None:
        self._smoothing = smoothing

    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:
        if not num_samples:
            return sum_of_nothing(outputs)
        return cross_entropy_sum(outputs, targets, self._smoothing)

    def mean_over(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.sum_over(outputs, targets, len(targets)) / targets.numel()

    def logits(self, outputs: Any) -> Tensor | None:
        assert isinstance(outputs, Tensor)
        return outputs.detach()


CROSS_ENTROPY = CrossEntropy()


def make_step(strategy: Strategy, batch: Batch, loss: LossFunction = CROSS_ENTROPY) -> StepResult:
    """Make a step by the mean loss over the targets of the global batch."""
    strategy.clear_gradients()
    if strategy.makes_steps:  # by the loss that was set before `prepare`
        result = strategy.compute_gradients(batch)
    else:
        result = _compute(strategy, batch, loss)
    return strategy.apply_gradients(batch, result, own_weight=float(batch.num_samples))


def _compute(strategy: Strategy, batch: Batch, loss: LossFunction) -> StepResult:
    accumulate = strategy.options.accumulate
    weight = strategy.loss_weight(batch.global_targets)
    loss_sum, logits = 0.0, list[Tensor | None]()
    if not strategy.sums_gradients:
        weight = 1 / max(1, batch.num_samples)
    pieces = split_micro_batches(batch, accumulate)
    if strategy.meets_in_passes:
        empty = pieces[-1]._replace(inputs=batch.inputs[:1], targets=batch.targets[:1])
        pieces += [empty._replace(num_samples=0)] * (accumulate - len(pieces))
    dtype = strategy.options.autocast
    began = time.perf_counter()
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        with nullcontext() if is_last else strategy.no_sync():
            casting = torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)
            with casting:
                outputs = strategy.module(piece.inputs)
            outputs = outputs.float() if dtype is not None else outputs
            total = loss.sum_over(outputs, piece.targets, piece.num_samples)
            if is_last:
                times = strategy.backward_and_reduce(total, weight)
            else:
                backward(total, weight)
        loss_sum += total.item()
        logits.append(loss.logits(outputs))
    return StepResult(loss_sum, join_logits(logits), 0.0, time.perf_counter() - began, *times)
