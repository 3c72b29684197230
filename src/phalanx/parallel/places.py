"""Places of a run in which ranks die and which spares take: their ranks, and which are vacant.
Pure."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

WAITING = -1
"""Progress of a spare that waits."""
DIVIDED = 2**40
"""Added to the progress of a rank that computes, once the spares wait."""


class Loss(NamedTuple):
    """Ranks that died, to be told of now."""

    lost: Sequence[int]
    """Ranks that died, by the numbers that they started with."""
    seconds: float
    """Seconds since the death was noticed."""
    were_waiting: bool = False
    """True if these were spares without a place."""


class Admission(NamedTuple):
    """Spares that joined the computing ranks, by original number."""

    members: Sequence[int]
    """All that compute from now on."""
    joined: Sequence[int]
    lost: Sequence[int]
    """Ranks that died, and whose places these take."""
    seconds: float
    """Seconds since the death was noticed."""


class Places:
    """Places of a run, by the numbers that ranks started with: the same on all that compute."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.seated = list(range(num_places))
        """Ranks that have places, or had and are lost."""
        self.vacated: list[int] = []
        """Ranks that are lost, while spares are to take their places."""
        self._vacated_at = 0.0
        self._vacancies: list[tuple[int, int]] = []
        """Numbers of calls, each with the places that spares can take after it."""

    @property
    def seconds(self) -> float:
        """Seconds since the first death that left a place vacant was noticed."""
        return time.monotonic() - self._vacated_at

    def note_vacant(self, calls: int, num_computing: int, num_living: int) -> None:
        """Note how many places spares can take after `calls` calls."""
        vacant = max(0, min(self.num_places, num_living) - num_computing)
        insort(self._vacancies, (calls, vacant), key=itemgetter(0))

    def has_vacancy(self, calls: int) -> bool:
        """Return whether spares are to take places after so many calls, the same on all ranks that
        compute.

        A rank that is ahead may have passed this point before a loss, and so counts what it knew.
        """
        known = [vacant for noted_at, vacant in self._vacancies if noted_at < calls]
        return bool(known and known[-1])

    def take_over(self, seated: Sequence[int], vacated: Sequence[int], seconds: float) -> None:
        """Know what a rank that computes does."""
        self.seated, self.vacated = list(seated), list(vacated)
        self._vacated_at = time.monotonic() - seconds

    def lose(self, lost: Sequence[int], seconds: float, *, are_replaced: bool) -> list[Loss]:
        """Note a loss, and return what is to be told of it now: nothing of ranks that spares are
        about to replace. seconds: since it was noticed."""
        if not self.vacated:
            self._vacated_at = time.monotonic() - seconds
        self.vacated += [rank for rank in lost if rank in self.seated]
        others = [rank for rank in lost if rank not in self.seated]
        told = [Loss(others, seconds, were_waiting=True)]
        return told if are_replaced else [*told, self._give_up()]

    def _give_up(self) -> Loss:
        loss, self.vacated = Loss(sorted(self.vacated), self.seconds), []
        return loss

    def admit(self, calls: int, members: Sequence[int]) -> Admission:
        """Note that from this call on `members` compute, and no place is to be taken."""
        insort(self._vacancies, (calls, 0), key=itemgetter(0))
        joined = [rank for rank in members if rank not in self.seated]
        self.seated += joined
        return Admission(members, joined, *self._give_up()[:2])


def computing(progress: Sequence[int], has_place: Sequence[bool]) -> list[int]:
    """Return the ranks that compute, from the progress of all that are left. Pure.

    has_place: whether each had a place from the start. Before the spares wait all ranks compute.
    """
    if all(0 <= own < DIVIDED for own in progress):
        return list(range(len(progress)))
    ranks = enumerate(zip(progress, has_place, strict=True))
    return [rank for rank, (own, had) in ranks if own >= DIVIDED or (own >= 0 and had)]
