"""Inputs, options and results of a training step, common to all strategies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

IGNORED = -100
"""Ignored target: that of a padding sample, with which a rank takes part in a step."""


class Batch(NamedTuple):
    """One rank's shard of a global batch."""

    inputs: Tensor
    """(n, …), n at least 1."""

    targets: Tensor
    """(n,) or (n, T) int64, `IGNORED` where there is nothing to predict."""

    num_samples: int
    """Number of these, without padding samples."""

    global_targets: int
    """Predictions in the global batch, over all ranks: the divisor of the loss."""

    step: int
    """Number in the run, from 0."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of a step that are common to all strategies."""

    accumulate: int = 1
    """Micro-batches of a rank's shard of a batch."""

    clip_norm: float | None = None
    """Largest norm of the gradients over all parameters and ranks; None: as large as they are."""

    skips_nonfinite: bool = False
    """A step whose gradients are not finite is skipped; else it raises an error."""

    autocast: torch.dtype | None = None
    """Type of forward and backward passes, where that is safe."""


class StepResult(NamedTuple):
    """Result of a step; the time that it took beyond these was the optimizer's."""

    loss_sum: float
    """Sum over this rank's targets, before the update; 0 where the rank does not see the loss."""

    logits: Tensor | None
    """(n, …, classes) for the samples of the batch; None where the rank does not see them."""

    forward_s: float
    """Seconds of this rank's forward passes."""
    backward_s: float
    """Seconds of this rank's backward passes."""
    communication_s: float
    """Communication, and waiting for peers, after that."""
    hidden_s: float | None = None
    """Communication while the rank computed; None where nobody measures it."""
    last_bucket_s: float | None = None
    """Communication of the last bucket, which cannot be hidden."""
    why_skipped: str = ""
    """Reason in a line, the same on every rank that skips the step: a gradient was not finite, and
    the parameters are as before. Empty: the step was made."""
    grad_norm: float | None = None
    """Norm of the gradients over all parameters and ranks, before clipping; None: not clipped."""

    @property
    def is_skipped(self) -> bool:
        """True if the step was skipped, for `why_skipped`."""
        return bool(self.why_skipped)


class StateBytes(NamedTuple):
    """Bytes that a rank stores for training."""

    parameters: int
    gradients: int
    optimizer: int


def backward(
    loss_sum: Tensor,
    weight: float,
    inputs: Sequence[nn.Parameter] | None = None,
    *,
    keeps_graph: bool = False,
) -> None:
    """Add the gradient of `weight` times the loss to each parameter's `grad`, or to those of
    `inputs` alone.

    keeps_graph: another loss that shares nodes with this one is differentiated later.
    """
    factor = None if weight == 1 else torch.full_like(loss_sum, weight)  # None is quicker
    torch.autograd.backward(loss_sum, factor, retain_graph=keeps_graph, inputs=inputs)


def split_micro_batches(batch: Batch, number: int) -> list[Batch]:
    """Split `batch` into at most `number` micro-batches whose sizes differ by at most one."""
    if number == 1:
        return [batch]
    inputs, targets = batch.inputs.tensor_split(number), batch.targets.tensor_split(number)
    return [
        Batch(
            part,
            part_targets,
            min(len(part), batch.num_samples),
            batch.global_targets,
            batch.step,
        )
        for part, part_targets in zip(inputs, targets, strict=True)
        if len(part)
    ]


def equally_many(batch: Batch, number: int) -> list[Batch]:
    """Split `batch` into `number` micro-batches, of padding where it has fewer samples: ranks that
    share parameters use them equally often."""
    micro_batches = split_micro_batches(batch, number)
    last = micro_batches[-1]
    padding = last._replace(
        inputs=last.inputs[:1], targets=torch.full_like(last.targets[:1], IGNORED), num_samples=0
    )
    return micro_batches + [padding] * (number - len(micro_batches))


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return by name the parameters that require a gradient; frozen ones are never updated."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def storage_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of memory behind `tensors`, each storage once; of a DTensor, what this rank holds."""
    storages = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
