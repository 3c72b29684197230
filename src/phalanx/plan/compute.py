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
) -> ComputeTime:
    """Return the step of a rank with `samples`, of `ranks` that wait for each other.

    at_once: ranks that compute on a node. contention: time of as many as multiple of one alone, of
    another machine; None: as the profile says.
    """
    alone, busy = _fits(profile, at_once)
    parts = [max(0.0, line.at(samples)) for line in (alone if contention else busy)]
    found = ComputeTime(*parts)
    if contention:
        found = found.scaled(contention)
    share = late_share(_nearest(profile, samples, at_once), ranks)
    return found._replace(waiting_s=share * found.own_s)


def measured_contention(profile: ProgramProfile, samples: float, at_once: int) -> float:
    """Return how much longer a step takes with as many ranks at once than alone; 1 where the
    profile has one rank alone."""
    alone, busy = _fits(profile, at_once)
    return max(1.0, _total(busy, samples) / max(1e-12, _total(alone, samples)))


def late_share(times: StepTimes, ranks: int) -> float:
    """Return by how much the slowest of `ranks` is later than the median, as a share of it.

    Each draws its steps from the measured ones, by itself: a step of all is the maximum, whose
    median is the quantile of 2^(-1/p) of one.
    """
    pooled = times.pooled
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


def _fits(profile: ProgramProfile, at_once: int) -> tuple[list[Line], list[Line]]:
    """Return the lines of all parts: alone, and with `at_once` ranks, between the measured numbers;
    of more than were measured those of the most."""
    known = sorted({each.at_once for each in profile.times})
    alone = _lines([each for each in profile.times if each.at_once == known[0]])
    most = _lines([each for each in profile.times if each.at_once == known[-1]])
    if known[0] == known[-1]:
        return alone, alone
    share = min(1.0, max(0.0, (at_once - known[0]) / (known[-1] - known[0])))
    mixed = [
        Line(*((1 - share) * x + share * y for x, y in zip(a, b, strict=True)))
        for a, b in zip(alone, most, strict=True)
    ]
    return alone, mixed


def _lines(times: Sequence[StepTimes]) -> list[Line]:
    """Return the line through the smallest and the largest batch, of each part."""
    low, high = (pick(times, key=lambda each: each.samples) for pick in (min, max))
    return [
        _line(low.samples, below, high.samples, above)
        for below, above in zip(_parts(low), _parts(high), strict=True)
    ]


def _line(low: int, below: float, high: int, above: float) -> Line:
    if low == high:
        return Line(0.0, above / high)
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
