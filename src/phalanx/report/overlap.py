"""Communication of a step hidden behind backward, and the share that could be hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from phalanx.records.events import StepEvent


@dataclass(frozen=True, kw_only=True)
class Overlap:
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

    @property
    def ceiling(self) -> float:
        """The largest part of the communication that could be hidden."""
        return self.hideable_s / self.communication_s if self.communication_s else 0.0

    @property
    def reached(self) -> float:
        """Share of the hideable communication that is hidden."""
        return min(1.0, self.hidden_s / self.hideable_s) if self.hideable_s else 1.0


def mean_overlap(overlaps: Sequence[Overlap]) -> Overlap | None:
    """Average over ranks, epochs or runs of equal weight."""
    if not overlaps:
        return None
    return Overlap(
        exposed_s=fmean(overlap.exposed_s for overlap in overlaps),
        hidden_s=fmean(overlap.hidden_s for overlap in overlaps),
        last_bucket_s=fmean(overlap.last_bucket_s for overlap in overlaps),
        backward_s=fmean(overlap.backward_s for overlap in overlaps),
    )


def overlap_of(steps: Sequence[StepEvent]) -> Overlap | None:
    """Return the mean overlap of the steps that recorded it; None where none did."""
    known = [step for step in steps if step.hidden_s is not None]
    if not known:
        return None
    return Overlap(
        exposed_s=sum(step.communication_s for step in known) / len(known),
        hidden_s=sum(step.hidden_s or 0.0 for step in known) / len(known),
        last_bucket_s=sum(step.last_bucket_s or 0.0 for step in known) / len(known),
        backward_s=sum(step.backward_s for step in known) / len(known),
    )
