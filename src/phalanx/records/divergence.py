"""The record of a training that has diverged."""

from __future__ import annotations

import math

from phalanx.records.schema import Outcome

NOT_FINITE = "gradients are not finite"
"""Words of every such error: they distinguish a run that diverged from one that broke."""

UNBOUNDED = 1e30
"""Record of a loss that is not finite: JSON knows neither infinity nor NaN."""


def recorded_loss(loss_sum: float) -> float:
    return loss_sum if math.isfinite(loss_sum) else UNBOUNDED


def mean_loss(loss_sum: float, num_targets: float) -> float:
    """Return the loss of a target; `UNBOUNDED` where a part of the sum was not finite, or there are
    no targets: that number divided is no loss."""
    is_finite = num_targets and loss_sum < UNBOUNDED
    return loss_sum / num_targets if is_finite else UNBOUNDED


def loss_text(loss: float) -> str:
    """Format a loss; `nan` for one that is not finite."""
    if loss >= UNBOUNDED:
        return "nan"
    return f"{loss:.4f}" if loss < 1e6 else f"{loss:.1e}"


def has_diverged(outcome: Outcome) -> bool:
    """Return whether the run was stopped because its gradients were not finite."""
    return outcome.status == "failed" and NOT_FINITE in (outcome.error or "")
