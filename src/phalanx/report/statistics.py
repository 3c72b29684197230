"""Intervals for every ratio and difference that a finding states. Pure, and the same every time.

The unit is the run: epochs of one run share its processes, its cores and its minute. An interval
is made by resampling the runs of each side with replacement (the bootstrap), from a fixed seed, and
is then widened as Student's t widens that of a mean: the plain bootstrap of few values is too
narrow (Hesterberg 2015, doi:10.1080/00031305.2015.1089789, section 4). Runs of one seed start from
the same weights and see the samples in the same order, so accuracies and losses are compared seed
by seed.

The rule of all findings: no superlative, no ratio called faster or slower, no "holds" unless the
interval carries it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, median
from typing import Any, Literal, TypeVar

from scipy.special import stdtrit

LEVEL = 0.95
RESAMPLES = 1_000
BLOCKS = 20
"""Stretches into which the calls of one measurement are cut."""

RUN_TO_RUN = 0.10
"""Difference between runs of the same work on a quiet machine. An interval from a single run
knows nothing of it, and is widened by it."""

SPREAD_FACTOR = 1.5
"""A run whose slowest timed epoch takes more than this many times its fastest was disturbed."""

T = TypeVar("T")
Verdict = Literal["higher", "lower", "unclear"]
Holding = Literal["holds", "is below", "unclear"]
Times = tuple[tuple[float, ...], ...]
"""Seconds of the timed epochs, run by run."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and where the true value lies, with `level` certainty."""

    estimate: float
    low: float
    high: float
    level: float = LEVEL

    def verdict(self, neutral: float) -> Verdict:
        """Return the side of `neutral` that all of the interval is on."""
        if self.low > neutral:
            return "higher"
        return "lower" if self.high < neutral else "unclear"

    def within(self, least: float, most: float = math.inf) -> Interval:
        """Return the interval, cut to what is possible."""
        return replace(self, low=max(least, self.low), high=min(most, self.high))

    @property
    def inverse(self) -> Interval:
        """Interval of the reciprocal of a ratio."""
        return replace(self, estimate=1 / self.estimate, low=1 / self.high, high=1 / self.low)


def ratio_of_times(above: Times, below: Times, *, comparisons: int = 1) -> Interval | None:
    """Return the interval of the ratio of the medians of `above` and `below`.

    comparisons: among how many this one is chosen as the largest or smallest; the more, the wider
    the interval (Bonferroni), since of many that are equal one always looks best.
    None where one side has a single epoch, or nothing: nothing is known of its spread.
    """
    runs = [tuple(tuple(run) for run in side if run) for side in (above, below)]
    sides = tuple(map(_units, runs))
    if min(map(len, sides)) < 2:
        return None
    estimate = math.log(_median(sides[0]) / _median(sides[1]))
    found = _bootstrap(sides, _log_ratio, estimate, comparisons)
    unknown = math.log1p(RUN_TO_RUN) if min(map(len, runs)) < 2 else 0.0
    return Interval(
        estimate=math.exp(estimate),
        low=math.exp(found.low - unknown),
        high=math.exp(found.high + unknown),
        level=found.level,
    )


def blocks(times: Sequence[float]) -> tuple[float, ...]:
    """Medians of BLOCKS stretches of times in the order in which they were measured: those of
    neighbouring calls are alike, and are no evidence of their own."""
    size = max(1, len(times) // BLOCKS)
    starts = range(0, len(times) - size + 1, size)
    return tuple(median(times[start : start + size]) for start in starts)


def non_inferiority(difference: Interval | None, margin: float) -> Holding:
    """Judge non-inferiority: not significantly worse, and by its interval less than `margin`
    worse."""
    if difference is None:
        return "unclear"
    if difference.verdict(0) == "lower":
        return "is below"
    return "holds" if difference.low > -margin else "unclear"


def mean_interval(values: Sequence[float], *, comparisons: int = 1) -> Interval | None:
    """The mean of independent values; None with fewer than two."""
    if len(values) < 2:
        return None
    return _bootstrap((tuple(values),), fmean, fmean(values), comparisons)


def not_told_apart(
    others: Iterable[T], interval_of: Callable[[T], Interval | None], *, neutral: float = 1.0
) -> list[T]:
    """Return the others that the best is not significantly ahead of.

    interval_of: the lead over one of them, above `neutral` where the best is ahead; corrected for
    all of them together.
    """
    leads = [(other, interval_of(other)) for other in others]
    return [o for o, lead in leads if lead is None or lead.verdict(neutral) != "higher"]


def level_of(comparisons: int) -> float:
    """Return the level of each of `comparisons` intervals for a joint level of LEVEL."""
    return 1 - (1 - LEVEL) / max(1, comparisons)


def spread(times: Sequence[float]) -> float:
    """The slowest ÷ the fastest; 1 of nothing."""
    return max(times) / min(times) if times and min(times) > 0 else 1.0


def is_spread(times: Sequence[float]) -> bool:
    return spread(times) > SPREAD_FACTOR


def _units(runs: Times) -> Times:
    """Return the units to resample: runs where there are several, else the epochs of the one."""
    return runs if len(runs) != 1 else tuple((time,) for time in runs[0])


def _median(units: Sequence[Sequence[float]]) -> float:
    return median(time for unit in units for time in unit)


def _log_ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> float:
    return math.log(_median(above)) - math.log(_median(below))


@lru_cache(maxsize=4_096)
def _bootstrap(
    sides: tuple[tuple[Any, ...], ...],
    statistic: Callable[..., float],
    estimate: float,
    comparisons: int,
) -> Interval:
    """The bootstrap's quantiles, moved away from the estimate by as much as Student's t interval of
    a mean is wider than the normal one. sides: of each the values to resample, two or more."""
    generator, numbers = random.Random(0), [len(side) for side in sides]
    ordered = sorted(
        statistic(*(generator.choices(side, k=len(side)) for side in sides))
        for _ in range(RESAMPLES)
    )
    # Quantiles of 95 % from all resamples, whatever the level: farther out too few resamples lie.
    usual, level, number = (1 - LEVEL) / 2, level_of(comparisons), min(numbers)
    first, last = (ordered[round(q * (RESAMPLES - 1))] for q in (usual, 1 - usual))
    freedom = sum(numbers) - len(numbers)
    factor = float(stdtrit(freedom, 1 - (1 - level) / 2)) / NormalDist().inv_cdf(1 - usual)
    factor *= math.sqrt(number / (number - 1))
    low, high = min(first, estimate), max(last, estimate)
    return Interval(
        estimate=estimate,
        low=estimate - factor * (estimate - low),
        high=estimate + factor * (high - estimate),
        level=level,
    )
