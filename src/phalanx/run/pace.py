"""Ranks that others wait for: decided from the times that each rank has measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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
    if not others:  # all have died
        return None
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
