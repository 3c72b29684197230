"""Counts of one rank, and their sums over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from phalanx.records.divergence import mean_loss
from phalanx.records.events import SummaryEvent


@dataclass(frozen=True, kw_only=True)
class RankTotals:
    """Sums over one rank's samples of one epoch; adding the ranks gives the global values."""

    train_s: float
    communication_s: float
    samples: float
    loss_sum: float
    correct: float
    """NaN where the loss asks for no classes; `validation_correct` too."""
    targets: float
    validation_targets: float
    validation_loss_sum: float
    validation_correct: float
    steps: float = 1.0  # made by this rank; 0 on a server, whose work is waiting
    damaged: float = 0.0  # samples left out
    skipped: float = 0.0  # skipped steps

    def values(self) -> list[float]:
        return list(astuple(self))

    @classmethod
    def from_values(cls, values: Sequence[float]) -> RankTotals:
        return cls(**dict(zip(cls.__annotations__, values, strict=True)))


def summarize(
    ranks: Sequence[RankTotals], *, epoch: int, trained_s: float, at_s: float
) -> SummaryEvent:
    """Sum up one epoch over all ranks.

    trained_s: training time of the epochs before this one.
    """
    epoch_s = max(rank.train_s for rank in ranks)
    samples = sum(rank.samples for rank in ranks)
    targets = sum(rank.targets for rank in ranks)
    validation_targets = sum(rank.validation_targets for rank in ranks)
    shares = [rank.communication_s / rank.train_s for rank in ranks if rank.steps]
    return SummaryEvent(
        at_s=at_s,
        epoch=epoch,
        epoch_s=epoch_s,
        trained_s=trained_s + epoch_s,
        images_per_s=samples / epoch_s,
        communication_share=sum(shares) / len(shares),
        train_loss=mean_loss(sum(rank.loss_sum for rank in ranks), targets),
        train_accuracy=_known(sum(rank.correct for rank in ranks) / max(1, targets)),
        validation_loss=mean_loss(
            sum(rank.validation_loss_sum for rank in ranks), validation_targets
        ),
        validation_accuracy=_known(
            sum(rank.validation_correct for rank in ranks) / validation_targets
        ),
        damaged=round(sum(rank.damaged for rank in ranks)),
        skipped=round(max(rank.skipped for rank in ranks)),
    )


def counted(correct: int | None) -> float:
    """Return correct predictions as a value of `RankTotals`."""
    return math.nan if correct is None else correct


def _known(ratio: float) -> float | None:
    return None if math.isnan(ratio) else ratio
