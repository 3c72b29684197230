"""Padding of batches to a fixed size: stages exchange tensors of one shape."""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.parallel.pipeline.boundaries import Boundary
from phalanx.parallel.step import IGNORED


def pad_batch(
    inputs: Tensor, targets: Tensor, num_samples: int, sample: Boundary
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets padded to `num_samples`: with the first sample, and ignored
    targets.

    inputs: (n, …), n from 1 to num_samples; targets: (n,) or (n, T); sample: shape and dtype of
    one.
    Raises: ValueError with the numbers that do not fit.
    """
    given = len(inputs)
    if inputs.shape[1:] != sample.shape or inputs.dtype != sample.dtype:
        raise ValueError(
            f"the pipeline was made for samples of {sample.shape}, {sample.dtype}, and got "
            f"{tuple(inputs.shape[1:])}, {inputs.dtype}"
        )
    if len(targets) != given or not 1 <= given <= num_samples:
        raise ValueError(
            f"the pipeline takes 1 to {num_samples} samples a step, and got {given} with "
            f"{len(targets)} targets"
        )
    missing = num_samples - given
    if not missing:
        return inputs, targets
    borrowed = inputs[:1].expand(missing, *inputs.shape[1:])
    ignored = targets.new_full((missing, *targets.shape[1:]), IGNORED)
    return torch.cat([inputs, borrowed]), torch.cat([targets, ignored])
