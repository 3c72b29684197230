"""Loss of a step, as a strategy that makes steps itself asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.models.own_model import tensors_in


class LossFunction(ABC):
    """Loss summed over the samples of a micro-batch: sums of micro-batches and ranks add up, and
    their gradients are weighted by one over the samples of the global batch."""

    @abstractmethod
    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:
        """Return the sum of the losses, 0-dim, for training.

        outputs: of the module. targets: (n, …). num_samples: 0 for a padding sample, which counts
        for nothing; else n.
        """

    @abstractmethod
    def mean_over(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean of the losses of at least one sample, 0-dim."""

    @abstractmethod
    def logits(self, outputs: Any) -> Tensor | None:
        """Return the outputs, detached, where they are one tensor."""


def join_logits(logits: Sequence[Tensor | None]) -> Tensor | None:
    """Return the logits of all micro-batches as one tensor, where they are kept."""
    kept = [part for part in logits if part is not None]
    return kept[0] if len(kept) == 1 else torch.cat(kept) if kept else None


def sum_of_nothing(outputs: Any) -> Tensor:
    """Return zero, 0-dim, whose gradient of every output is zero: a rank takes part in the
    backward pass without a sample."""
    zeros = [(tensor * 0).sum() for tensor in tensors_in(outputs) if tensor.requires_grad]
    return torch.stack(zeros).sum() if zeros else torch.zeros(())
