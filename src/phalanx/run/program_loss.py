"""A program's loss: its checks, and its value where the strategy calls it, on micro-batches that a
pipeline has cut itself."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from phalanx.errors import UserError
from phalanx.parallel.loss import LossFunction, sum_of_nothing

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


SUM = 2
"""Value of `reduction` in nodes of autograd."""


def check_loss(loss: object) -> None:
    """Raises: UserError for what has no gradient."""
    if not isinstance(loss, Tensor):
        raise UserError(f"run.backward takes the loss as a tensor, not a {type(loss).__name__}")
    if loss.numel() != 1:
        raise UserError(
            f"run.backward takes a scalar loss, but this has shape {tuple(loss.shape)}: take its "
            "mean over the micro-batch"
        )
    if loss.is_complex():
        raise UserError(f"run.backward takes a real loss, but this is {loss.dtype}: take .real")
    if not loss.requires_grad:
        raise UserError(
            "the loss has no graph: it depends on no parameter that requires a gradient, or was "
            "computed under no_grad"
        )


def check_weight(weight: Any) -> None:
    """Raise UserError for a weight of a micro-batch that is no finite number from 0."""
    try:
        fits = math.isfinite(weight) and weight >= 0
    except (TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise UserError(f"run.backward: weight={weight!r} is not a finite number from 0")


def check_mean(loss: Tensor, num_samples: int, *, warns: bool) -> None:
    """Check that a loss is no sum over the samples of a micro-batch, by the last node of its graph.

    A loss function of PyTorch with reduction="sum" is one for certain. A sum of as many values as
    there are samples, which nothing has weighted, most likely is: a line on stderr.

    warns: prints that line.
    Raises: UserError for the former.
    """
    node: Any = loss.grad_fn
    if node is None or num_samples < 2:
        return
    mend = (
        "run.backward needs the mean over the micro-batch, which it weights by the number of "
        'samples: leave reduction="sum" out, or divide by that number'
    )
    if getattr(node, "_saved_reduction", None) == SUM and _num_rows(node) >= num_samples:
        raise UserError(f"the loss is a sum over {num_samples} samples: {mend}")
    if warns and node.name() == "SumBackward0" and _is_plain_sum(node, num_samples):
        print(
            f"phalanx: the loss looks like a sum over {num_samples} samples: {mend}",
            file=sys.stderr,
            flush=True,
        )


def _num_rows(node: Any) -> int:
    """Return the length of what a loss function of PyTorch sums over."""
    inputs = getattr(node, "_saved_self", None)
    return len(inputs) if isinstance(inputs, Tensor) and inputs.dim() else 1


def _is_plain_sum(node: Any, num_samples: int) -> bool:
    """Return whether a sum goes over the samples, and its terms are no products."""
    shape = tuple(getattr(node, "_saved_self_sym_sizes", ()))
    terms = node.next_functions[0][0] if node.next_functions else None
    is_weighted = terms is not None and terms.name().startswith(("Mul", "Div"))
    return shape[:1] == (num_samples,) and not is_weighted
