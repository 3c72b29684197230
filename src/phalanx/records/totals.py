"""Counts of each rank in an epoch, and the summary of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.records.events import SummaryEvent


class RankTotals(NamedTuple):
    """Counts of one rank in one epoch."""

    train_s: float
    communication_s: float
    correct: float
    """Right predictions; NaN if nobody counts them."""
    targets: float
    """All predictions; 0 if another rank counts the same ones."""
    steps: float = 1.0
    """Steps of this rank; 0 on a server, whose work is waiting."""
    damaged: float = 0.0
    """Samples left out."""
    skipped: float = 0.0
    """Skipped steps."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Result of an evaluation, over all ranks."""

    samples: int
    """Number of samples."""
    loss: float
    """Mean over the samples."""
    accuracy: float | None
    """Share of correct predictions, from 0 to 1; None: not counted."""
    correct: int | None
    """Number of correct predictions; None: not counted."""
    seconds: float
    """Seconds that this rank took."""


def summarize(
    ranks: Sequence[RankTotals],
    validation: Validation | None,
    *,
    epoch: int,
    samples: int,
    train_loss: float,
    trained_s: float,
    at_s: float,
) -> SummaryEvent:
    """Sum up one epoch over all ranks.

    samples: that were trained on. train_loss: their mean. trained_s: training time of the epochs
    before this one.
    """
    epoch_s = max(rank.train_s for rank in ranks)
    shares = [rank.communication_s / rank.train_s for rank in ranks if rank.steps]
    targets = sum(rank.targets for rank in ranks)
    right = sum(rank.correct for rank in ranks)
    return SummaryEvent(
        at_s=at_s,
        epoch=epoch,
        epoch_s=epoch_s,
        trained_s=trained_s + epoch_s,
        images_per_s=samples / epoch_s,
        communication_share=sum(shares) / len(shares),
        train_loss=train_loss,
        train_accuracy=None if math.isnan(right) or not targets else right / targets,
        validation_loss=None if validation is None else validation.loss,
        validation_accuracy=None if validation is None else validation.accuracy,
        damaged=round(sum(rank.damaged for rank in ranks)),
        skipped=round(max(rank.skipped for rank in ranks)),
    )
