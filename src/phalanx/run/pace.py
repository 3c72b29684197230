"""Ranks that others wait for, and micro-batches of the ranks, so that all of them are done at the
same time: decided from the times that each rank has measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

PHASES = ("data", "forward", "backward", "optimizer")
SLOW_RATIO = 1.5
"""Ratio of a phase to the median of the other ranks from which a rank may be slow."""
SLOW_SHARE = 0.1
"""Least share of the others' step by which a slow rank exceeds it: nobody waits for less."""
SLOW_WINDOWS = 2
"""One after the other, in which a rank must be slow."""
SLOW_S = 1.0
"""Least excess: within less the system may have given the core to another process."""
MAX_RATIO = 999.0
TOLD_EVERY_STEPS = 500
"""Steps between two lines about the same rank."""


class RankPace(NamedTuple):
    """Sums over the steps of a window, of one rank."""

    micro_batches: float
    """Micro-batches that it computed."""
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    """Whole steps, with what it waited for others."""

    @property
    def unit_s(self) -> float:
        """Seconds of a micro-batch."""
        return (self.data_s + self.forward_s + self.backward_s) / max(1.0, self.micro_batches)

    def phases(self, steps: int) -> list[float]:
        """Return seconds by phase: of a micro-batch, and of the optimizer's step."""
        per = max(1.0, self.micro_batches)
        of_one = [self.data_s / per, self.forward_s / per, self.backward_s / per]
        return [*of_one, self.optimizer_s / steps]


class SlowRank(NamedTuple):
    """A rank that is slower than the others."""

    rank: int
    phase: str
    """Phase in which it loses most."""
    ratio: float
    """Ratio of that phase to the median of the others."""
    steps: int
    """Steps for which it has been slow."""


def slow_phase(paces: Sequence[RankPace], rank: int, steps: int) -> tuple[str, float] | None:
    """Return the phase in which a rank loses most against the others, and how many times their
    median it takes; None where it is not slow. Micro-batches count alike, however many a rank has.
    """
    if len(paces) == 1:
        return None
    others = [pace.phases(steps) for number, pace in enumerate(paces) if number != rank]
    usual = [median(times) for times in zip(*others, strict=True)]
    own = paces[rank].phases(steps)
    per_step = [paces[rank].micro_batches / steps] * 3 + [1.0]
    excess = [n * (mine - usually) for n, mine, usually in zip(per_step, own, usual, strict=True)]
    number = max(range(len(PHASES)), key=excess.__getitem__)
    whole_s = sum(n * usually for n, usually in zip(per_step, usual, strict=True))
    is_slow = own[number] >= SLOW_RATIO * usual[number] and excess[number] >= SLOW_SHARE * whole_s
    if not is_slow or not whole_s:
        return None
    return PHASES[number], own[number] / max(usual[number], own[number] / MAX_RATIO)


class SlowRanks:
    """Ranks that were slow in the last windows, and when they were told of."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int, float]] = {}  # windows, steps, seconds
        self._told_at: dict[int, int] = {}

    def see(self, paces: Sequence[RankPace], *, steps: int, step: int) -> list[SlowRank]:
        """Return the ranks to tell of now. steps: of the window; step: updates made so far."""
        found = []
        for rank in range(len(paces)):
            slow = slow_phase(paces, rank, steps)
            if slow is None:
                self._since.pop(rank, None)
                continue
            windows, before, seconds = self._since.get(rank, (0, 0, 0.0))
            now = windows + 1, before + steps, seconds + paces[rank].step_s
            self._since[rank] = now
            told_at = self._told_at.get(rank)
            is_due = told_at is None or step - told_at >= TOLD_EVERY_STEPS
            if now[0] >= SLOW_WINDOWS and now[2] >= SLOW_S and is_due:
                self._told_at[rank] = step
                found.append(SlowRank(rank, *slow, now[1]))
        return found


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
