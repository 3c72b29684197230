"""Micro-batches of the ranks, so that all of them are done at the same time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from phalanx.run.pace import RankPace

LEAST_GAIN = 0.1
"""Least share of a step's time that a new division saves."""
WINDOWS = 2
"""One after the other, in which it would have."""

Costs = tuple[Sequence[float], Sequence[float]]
"""Seconds by rank of a micro-batch, and of the work that does not depend on their number."""


def step_s(counts: Sequence[int], units_s: Sequence[float], fixed_s: Sequence[float]) -> float:
    """Return the seconds that the slowest rank takes for its micro-batches and its update."""
    return max(n * unit + own for n, unit, own in zip(counts, units_s, fixed_s, strict=True))


def balanced_counts(
    number: int, units_s: Sequence[float], fixed_s: Sequence[float]
) -> tuple[int, ...]:
    """Return how many of `number` micro-batches each rank gets, at least one, so that the slowest
    is done as early as possible; of equal ranks the first ones get more.

    units_s: seconds of a micro-batch, by rank; fixed_s: of what does not depend on their number.
    """
    counts = [1] * len(units_s)
    for _ in range(number - len(counts)):
        ends = [(n + 1) * unit + own for n, unit, own in zip(counts, units_s, fixed_s, strict=True)]
        counts[ends.index(min(ends))] += 1
    return tuple(counts)


def division(counts: Sequence[int]) -> list[range]:
    """Return the numbers of the micro-batches of each rank: consecutive ones, of which most can be
    added up where they are."""
    return [range(*ends) for ends in pairwise([0, *accumulate(counts)])]


class Rebalancer:
    """Division of the micro-batches as the ranks' times suggest it; the same on all ranks, which
    see the same times."""

    def __init__(self) -> None:
        self._seen: list[Costs] = []

    def see(
        self, paces: Sequence[RankPace], counts: Sequence[int], *, steps: int
    ) -> tuple[int, ...] | None:
        """Return how many micro-batches each rank gets from now on; None: as many as before.

        paces: of a window of so many steps, in which the ranks had `counts`.
        """
        costs = [pace.unit_s for pace in paces], [pace.optimizer_s / steps for pace in paces]
        if self._seen and len(self._seen[-1][0]) != len(paces):  # ranks were lost
            self._seen.clear()
        self._seen = [*self._seen[1 - WINDOWS :], costs]
        if len(self._seen) < WINDOWS:
            return None
        units_s, fixed_s = (_means(values) for values in zip(*self._seen, strict=True))
        wanted = balanced_counts(sum(counts), units_s, fixed_s)
        for units, fixed in self._seen:
            if step_s(wanted, units, fixed) > (1 - LEAST_GAIN) * step_s(counts, units, fixed):
                return None
        self._seen.clear()
        return wanted


def _means(windows: Sequence[Sequence[float]]) -> list[float]:
    """Return each rank's mean over the windows."""
    return [sum(values) / len(values) for values in zip(*windows, strict=True)]
