"""Checks of a loss that a program gives."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch import Tensor

from phalanx.errors import UserError

SUM = 2
"""Value of `reduction` in nodes of autograd."""


def check_loss(loss: object) -> None:
    """Raises: UserError for what has no gradient."""
    if not isinstance(loss, Tensor):
        raise UserError(f"run.backward takes the loss as a tensor, not a {type(loss).__name__}")
    if loss.numel() != 1:
        raise UserError(
            f"run.backward takes a scalar loss, and this has shape {tuple(loss.shape)}: "
            "take its mean over the micro-batch"
        )
    if loss.is_complex():
        raise UserError(f"run.backward takes a real loss, and this is {loss.dtype}: take .real")
    if not loss.requires_grad:
        raise UserError(
            "the loss has no graph: it does not depend on a parameter that requires a gradient, or "
            "was computed under no_grad"
        )


def check_weight(weight: Any) -> None:
    """Raise UserError for a weight of a micro-batch that is no finite number from 0."""
    try:
        fits = math.isfinite(weight) and weight >= 0
    except (TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise UserError(f"run.backward: weight={weight!r} is no finite number from 0")


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
        "run.backward takes the mean over the micro-batch, and weighs it by its samples: leave "
        'reduction="sum" out, or divide by their number'
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
