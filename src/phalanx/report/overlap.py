"""Communication of a step hidden behind backward, and the share that could be hidden."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from phalanx.records.events import StepEvent


class Overlap(NamedTuple):
    """Seconds of a mean step."""

    exposed_s: float
    hidden_s: float
    last_bucket_s: float
    """Of the bucket that is complete last: nothing is left to hide it behind."""
    backward_s: float

    @property
    def communication_s(self) -> float:
        return self.exposed_s + self.hidden_s

    @property
    def hideable_s(self) -> float:
        """Communication of all but the last bucket, at most the backward time."""
        return min(max(0.0, self.communication_s - self.last_bucket_s), self.backward_s)


def mean_overlap(overlaps: Sequence[Overlap]) -> Overlap | None:
    """Average over steps, ranks, epochs or runs of equal weight; None of nothing."""
    return Overlap(*map(fmean, zip(*overlaps, strict=True))) if overlaps else None


def overlap_of(steps: Sequence[StepEvent]) -> Overlap | None:
    """Return the mean overlap of the steps that recorded it; None where none did."""
    return mean_overlap(
        [
            Overlap(s.communication_s, s.hidden_s, s.last_bucket_s or 0.0, s.backward_s)
            for s in steps
            if s.hidden_s is not None
        ]
    )
