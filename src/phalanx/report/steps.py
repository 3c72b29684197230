"""Steps of one rank as a table, and what is known from it: parts of a step, and overlap. Pure.

Overlap is communication of a step hidden behind backward, and the share that could be hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.records.events import StepEvent

PARTS = ("data", "forward", "backward", "communication", "optimizer")
_PARTS_S = tuple(f"{part}_s" for part in PARTS)
_COLUMNS = (
    *(*_PARTS_S, "hidden_s", "last_bucket_s", "node_s", "network_s"),
    *("loss_sum", "samples", "step"),
)
Steps = NDArray[Any]
"""A row for each step, with fields of `StepEvent`; NaN where one was not measured."""


def step_table(steps: Iterable[StepEvent]) -> Steps:
    values = map(attrgetter(*_COLUMNS), steps)
    rows = [tuple(math.nan if value is None else value for value in row) for row in values]
    return np.array(rows, [(name, "f8") for name in _COLUMNS])


def parts_of(step: StepEvent) -> tuple[float, ...]:
    """Seconds of a step, in the order of PARTS."""
    return tuple(getattr(step, name) for name in _PARTS_S)


def parts_s(steps: Steps) -> NDArray[np.float64]:
    """Return the seconds of each step, shape (steps, PARTS)."""
    return np.stack([steps[name] for name in _PARTS_S], axis=1)


def step_times(ranks: Iterable[Steps]) -> list[float]:
    """Return the time of every step on its slowest rank, of the ranks that make steps."""
    times = [parts_s(steps).sum(axis=1) for steps in ranks if len(steps)]
    number = min(map(len, times), default=0)
    return [float(t) for t in np.max([own[:number] for own in times], axis=0)] if times else []


class Overlap(NamedTuple):
    """Seconds of a mean step."""

    exposed_s: float
    hidden_s: float
    last_bucket_s: float
    """Communication of the bucket that is complete last: nothing is left to hide it behind."""
    backward_s: float

    @property
    def communication_s(self) -> float:
        return self.exposed_s + self.hidden_s

    @property
    def hideable_s(self) -> float:
        """Communication of all but the last bucket, at most the backward time."""
        return min(max(0.0, self.communication_s - self.last_bucket_s), self.backward_s)


def mean_overlap(overlaps: Sequence[Overlap]) -> Overlap | None:
    """Average over ranks, epochs or runs of equal weight; None of nothing."""
    return Overlap(*map(fmean, zip(*overlaps, strict=True))) if overlaps else None


def overlap_of(steps: Steps) -> Overlap | None:
    """Return the mean overlap of the steps that recorded it; None where none did."""
    known = steps[~np.isnan(steps["hidden_s"])]
    if not len(known):
        return None
    names = ("communication_s", "hidden_s", "last_bucket_s", "backward_s")
    return Overlap(*(float(np.nan_to_num(known[name]).mean()) for name in names))
