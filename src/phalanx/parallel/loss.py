"""Loss of a step: cross entropy, or a function of the user's, as a sum over a micro-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.errors import UserError
from phalanx.models.own_model import tensors_in
from phalanx.parallel.step import Batch, cross_entropy_sum, num_targets


class LossFunction(ABC):
    """Loss summed over the targets of a micro-batch: sums of micro-batches and ranks add up, and
    their gradients are weighted by one over the targets of the global batch."""

    counts_correct: bool = True
    """Whether outputs are logits of classes, (n, …, classes), of which correct ones are counted."""

    @abstractmethod
    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:
        """Return the sum of the losses, 0-dim, for training.

        outputs: of the module. targets: (n, …). num_samples: 0 for a padding sample, which counts
        for nothing; else n.
        """

    def evaluate(self, outputs: Any, targets: Tensor, num_samples: int) -> float:
        """Return the sum of the losses that an evaluation reports."""
        return self.sum_over(outputs, targets, num_samples).item()

    def mean_over(
        self, outputs: Any, targets: Tensor, num_samples: int, targets_per_sample: int
    ) -> Tensor:
        """Return the mean of the losses, 0-dim. num_samples: at least 1; others: as `sum_over`."""
        return self.sum_over(outputs, targets, num_samples) / (num_samples * targets_per_sample)

    @abstractmethod
    def num_targets(self, batch: Batch) -> int:
        """Return the number of this rank's targets in `batch`."""

    def logits(self, outputs: Any) -> Tensor | None:
        """Return the outputs, detached, where correct predictions are counted; else None."""
        return outputs.detach() if self.counts_correct else None


class CrossEntropy(LossFunction):
    """Cross entropy of logits (n, …, classes) and targets (n, …) int64 but the ignored."""

    def __init__(self, smoothing: float = 0.0) -> None:
        """smoothing: probability that a target spreads evenly over all classes, in training."""
        self._smoothing = smoothing

    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:  # noqa: ARG002
        return cross_entropy_sum(outputs, targets, self._smoothing)

    def evaluate(self, outputs: Any, targets: Tensor, num_samples: int) -> float:  # noqa: ARG002
        return cross_entropy_sum(outputs, targets).item()

    def num_targets(self, batch: Batch) -> int:
        return num_targets(batch)


class MeanLoss(LossFunction):
    """A function of the user's, (outputs, targets) → its mean over the micro-batch, 0-dim.

    It never sees a padding sample.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Tensor],
        *,
        targets_per_sample: int = 1,
        counts_correct: bool = False,
    ) -> None:
        """targets_per_sample: by which the batch counts its global targets."""
        self._function, self._targets_per_sample = function, targets_per_sample
        self.counts_correct = counts_correct

    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:
        """Return the mean times the number of targets; zero with a graph for a padding sample.

        Raises: UserError when the function returns anything but a 0-dim tensor.
        """
        if not num_samples:
            return sum_of_nothing(outputs)
        mean = self._function(outputs, targets)
        if not isinstance(mean, Tensor) or mean.dim():
            shape = f"of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else f"{mean!r:.40}"
            raise UserError(
                f"--loss returned {shape}: it must return the mean over the micro-batch, a 0-dim "
                "tensor"
            )
        if torch.is_grad_enabled() and not mean.requires_grad:
            raise UserError(
                "--loss returned a tensor without a graph: compute it from the outputs, without "
                "detach, item or no_grad"
            )
        return mean * (num_samples * self._targets_per_sample)

    def num_targets(self, batch: Batch) -> int:
        return batch.num_samples * self._targets_per_sample


def join_logits(logits: Sequence[Tensor | None]) -> Tensor | None:
    """Return the logits of all micro-batches as one tensor, where they are kept."""
    kept = [part for part in logits if part is not None]
    return kept[0] if len(kept) == 1 else torch.cat(kept) if kept else None


def sum_of_nothing(outputs: Any) -> Tensor:
    """Return zero, 0-dim, whose gradient of every output is zero: a rank takes part in the
    backward pass without a sample."""
    zeros = [(tensor * 0).sum() for tensor in tensors_in(outputs) if tensor.requires_grad]
    return torch.stack(zeros).sum() if zeros else torch.zeros(())
