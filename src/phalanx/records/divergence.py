"""How a training that has diverged stands in the records."""

from __future__ import annotations

import math

from phalanx.records.schema import Outcome

NOT_FINITE = "gradients are not finite"
"""Of every error that says so: by these words a run that diverged is told from one that broke."""

UNBOUNDED = 1e30
"""What is recorded of a loss that is not finite: JSON knows neither infinity nor NaN."""


def recorded_loss(loss_sum: float) -> float:
    return loss_sum if math.isfinite(loss_sum) else UNBOUNDED


def has_diverged(outcome: Outcome) -> bool:
    """Whether the run was stopped because its gradients were not finite."""
    return outcome.status == "failed" and NOT_FINITE in (outcome.error or "")
