"""Micro-batches of the ranks, so that all of them are done at the same time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from phalanx.run.pace import RankPace

LEAST_GAIN = 0.1
"""Of a step's time that a new division must save."""
WINDOWS = 2
"""One after the other, in which it would have."""


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
    """Divisions that a run has tried; the same on all ranks, which see the same times."""

    def __init__(self) -> None:
        self._seen: list[Sequence[RankPace]] = []

    def see(
        self, paces: Sequence[RankPace], counts: Sequence[int], *, steps: int
    ) -> tuple[int, ...] | None:
        """Return how many micro-batches each rank gets from now on; None: as many as before.

        paces: of a window of so many steps, in which the ranks had `counts`.
        """
        if self._seen and len(self._seen[-1]) != len(paces):  # ranks were lost
            self._seen.clear()
        self._seen = [*self._seen[1 - WINDOWS :], paces]
        if len(self._seen) < WINDOWS:
            return None
        wanted = balanced_counts(sum(counts), *_mean_costs(self._seen, steps))
        for window in self._seen:
            costs = _mean_costs([window], steps)
            if step_s(wanted, *costs) > (1 - LEAST_GAIN) * step_s(counts, *costs):
                return None
        self._seen.clear()
        return wanted


def _mean_costs(
    windows: Sequence[Sequence[RankPace]], steps: int
) -> tuple[list[float], list[float]]:
    """Return by rank the seconds of a micro-batch and of an update."""
    by_rank = list(zip(*windows, strict=True))
    units = [sum(pace.unit_s for pace in paces) / len(paces) for paces in by_rank]
    fixed = [sum(pace.optimizer_s for pace in paces) / len(paces) / steps for paces in by_rank]
    return units, fixed
