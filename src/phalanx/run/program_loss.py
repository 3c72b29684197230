"""A program's loss where the strategy calls it: on micro-batches that a pipeline has cut itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from phalanx.parallel.loss import LossFunction, sum_of_nothing
from phalanx.run.check_loss import check_loss, check_weight

LossOf = Callable[[Any, Any], Tensor]
"""Function of outputs and targets that returns the mean over their samples, 0-dim."""
WeightOf = Callable[[Any], float]
"""Function of targets that returns the weight of their mean."""


class ProgramLoss(LossFunction):
    """The loss that a call of `run.step` brings with it."""

    def __init__(self) -> None:
        self._function: LossOf | None = None
        self._weight: WeightOf | None = None
        self.weights = 0.0
        """Sum over the micro-batches of the step, of those that this rank sees."""

    def begin(self, function: LossOf, weight: WeightOf | None) -> None:
        """Take the loss of a step. weight: None: a micro-batch counts by its samples."""
        self._function, self._weight, self.weights = function, weight, 0.0

    def sum_over(self, outputs: Any, targets: Tensor, num_samples: int) -> Tensor:
        """Return the mean times its weight; zero with a graph for padding.

        Raises: UserError for what is no mean with a graph, and for a weight that is no number.
        """
        if not num_samples:
            return sum_of_nothing(outputs)
        mean = self.mean_over(outputs, targets)
        weight = float(num_samples if self._weight is None else self._weight(targets))
        check_weight(weight)
        self.weights += weight
        return mean * weight if weight else sum_of_nothing(outputs)

    def mean_over(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean. Raises: UserError for what is none."""
        assert self._function is not None, "set before the step"
        mean = self._function(outputs, targets)
        check_loss(mean)
        return mean

    def logits(self, outputs: Any) -> Tensor | None:
        """Return the outputs, detached, where they are one tensor."""
        return outputs.detach() if isinstance(outputs, Tensor) else None


def detached(outputs: Any) -> Any:
    """Return outputs without their graph: a tensor, or tuples, lists and dictionaries of some."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, outputs)
