"""Seconds that a rank computes in a step, from a profile: by samples, ranks at once, noise. Pure.

Between measured batches a line is taken, and beyond them too, which the caller reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx.plan.profile import ProgramProfile, StepTimes


class ComputeTime(NamedTuple):
    """Parts of a median step of a rank that exchanges nothing, in seconds."""

    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    other_s: float
    """Time between these: the loop of the program."""
    waiting_s: float = 0.0
    """Time by which the slowest of all ranks is later than a median one."""

    @property
    def own_s(self) -> float:
        return sum(self[:5])

    def scaled(self, factor: float) -> ComputeTime:
        return ComputeTime(*(factor * part for part in self))


def compute_time(
    profile: ProgramProfile,
    samples: float,
    at_once: int,
    ranks: int,
    contention: float | None = None,
    period: int = 1,
) -> ComputeTime:
    """Return the step of a rank with `samples`, of `ranks` that wait for each other.

    at_once: ranks that compute on a node. contention: time of as many as multiple of one alone, of
    another machine; None: as the profile says. period: steps from one wait to the next.
    """
    alone, busy = _fits(profile, at_once)
    parts = [max(0.0, line.at(samples)) for line in (alone if contention else busy)]
    found = ComputeTime(*parts)
    if contention:
        found = found.scaled(contention)
    share = late_share(_nearest(profile, samples, at_once), ranks, period)
    return found._replace(waiting_s=share * found.own_s)


def measured_contention(profile: ProgramProfile, samples: float, at_once: int) -> float:
    """Return how much longer a step takes with as many ranks at once than alone; 1 where the
    profile has one rank alone."""
    alone, busy = _fits(profile, at_once)
    return max(1.0, _total(busy, samples) / max(1e-12, _total(alone, samples)))


def late_share(times: StepTimes, ranks: int, period: int = 1) -> float:
    """Return by how much the slowest of `ranks` is later than the median, as a share of it.

    Each draws its steps from the measured ones, by itself, `period` of them that followed each
    other at a time: a step of all is the maximum, whose median is the quantile of 2^(-1/p) of one.
    """
    pooled = (times.means(period) if period > 1 else []) or times.pooled
    place = float(0.5 ** (1 / ranks)) * (len(pooled) - 1)
    low = int(place)
    high = min(low + 1, len(pooled) - 1)
    quantile = pooled[low] + (place - low) * (pooled[high] - pooled[low])
    return max(0.0, quantile / times.median_s - 1)


def measured_samples(profile: ProgramProfile) -> tuple[int, int]:
    """Return the smallest and the largest batch of a rank that the profile has."""
    samples = [each.samples for each in profile.times]
    return min(samples), max(samples)


def peak_bytes(profile: ProgramProfile, samples: float) -> float | None:
    """Return the most memory of the process of a rank with `samples`; None where no run tells.

    By a line through the smallest and the largest batch; of one batch alone, by what its forward
    pass keeps of a sample.
    """
    known = [each for each in profile.times if each.at_once == 1 and each.peak_bytes]
    if not known:
        return None
    low, high = (pick(known, key=lambda each: each.samples) for pick in (min, max))
    slope = float(profile.saved_bytes)
    if low.samples < high.samples:
        slope = max(0.0, (high.peak_bytes - low.peak_bytes) / (high.samples - low.samples))
    return high.peak_bytes + slope * (samples - high.samples)


class Line(NamedTuple):
    """A fixed part and one per sample."""

    fixed: float
    per_sample: float

    def at(self, samples: float) -> float:
        return self.fixed + self.per_sample * samples

    def through(self, samples: int, seconds: float) -> Line:
        """Return a multiple of this line that goes through a point."""
        here = self.at(samples)
        if here <= 0:
            return Line(0.0, seconds / samples)
        return Line(*(each * seconds / here for each in self))


def _fits(profile: ProgramProfile, at_once: int) -> tuple[list[Line], list[Line]]:
    """Return the lines of all parts: alone, and with `at_once` ranks, between the measured numbers
    that are next to it; of more than were measured those of the most."""
    known = sorted({each.at_once for each in profile.times})
    number = min(max(at_once, known[0]), known[-1])
    below, above = max(k for k in known if k <= number), min(k for k in known if k >= number)
    alone = _lines(profile, known[0])
    fewer, more = (_lines(profile, k, alone) for k in (below, above))
    share = (number - below) / max(1, above - below)
    mixed = [
        Line(*((1 - share) * x + share * y for x, y in zip(a, b, strict=True)))
        for a, b in zip(fewer, more, strict=True)
    ]
    return alone, mixed


def _lines(profile: ProgramProfile, at_once: int, alone: Sequence[Line] = ()) -> list[Line]:
    """Return the line through the smallest and the largest batch of so many at once, of each part;
    through one batch a multiple of `alone`."""
    times = [each for each in profile.times if each.at_once == at_once]
    low, high = (pick(times, key=lambda each: each.samples) for pick in (min, max))
    below, above = _parts(low), _parts(high)
    if low is high:
        like = alone or [Line(0.0, 1.0)] * len(above)
        return [line.through(high.samples, each) for line, each in zip(like, above, strict=True)]
    return [_line(low.samples, *each, high.samples) for each in zip(below, above, strict=True)]


def _line(low: int, below: float, above: float, high: int) -> Line:
    slope = max(0.0, (above - below) / (high - low))
    return Line(max(0.0, above - slope * high), slope)


def _parts(times: StepTimes) -> list[float]:
    parts = [times.data_s, times.forward_s, times.backward_s, times.optimizer_s]
    return [*parts, max(0.0, times.median_s - sum(parts))]


def _total(lines: Sequence[Line], samples: float) -> float:
    return sum(line.at(samples) for line in lines)


def _nearest(profile: ProgramProfile, samples: float, at_once: int) -> StepTimes:
    """Return the measured steps that are most like these."""
    return min(
        profile.times,
        key=lambda each: (abs(each.at_once - at_once), abs(each.samples - samples)),
    )
