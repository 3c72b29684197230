"""Ranks of which some wait as spares, and take the places of those that die.

After Fenix (Gamell et al. 2014, doi:10.1109/SC.2014.78). All ranks meet in each recovery; those
that compute have a world of their own then. Between two steps the survivors give a spare their
state, and it is one of them.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple, Protocol

from phalanx.comm.group import Group
from phalanx.comm.recovery import Recovery, is_recoverable, recover
from phalanx.comm.sub_world import await_word, retire, send_word, sub_world
from phalanx.comm.world import World
from phalanx.errors import RunFailedError
from phalanx.parallel.surviving_group import SurvivingGroup
from phalanx.records.rank_texts import recovered_text, replaced_text
from phalanx.records.schema import RecoveredEvent, ReplacedEvent

WAITING = -1
"""Progress of a spare that waits."""
DIVIDED = 2**40
"""Added to the progress of a rank that computes, once the spares wait."""


class RunState(Protocol):
    """State that a rank is given when it takes a place."""

    def send(self, group: Group, dest: int) -> None:
        """Send all of it."""

    def receive(self, group: Group, source: int) -> None:
        """Replace this rank's own."""


class Admission(NamedTuple):
    """Spares that have come to those that compute, by the numbers that they started with."""

    members: Sequence[int]
    """All that compute from now on."""
    joined: Sequence[int]
    lost: Sequence[int]
    """Ranks that died, and whose places these take."""
    seconds: float
    """Since the death was noticed."""


def computing(progress: Sequence[int], has_place: Sequence[bool]) -> list[int]:
    """Return the ranks that compute, from the progress of all that are left. Pure.

    has_place: whether each had a place from the start. Before the spares wait all ranks compute.
    """
    if all(0 <= own < DIVIDED for own in progress):
        return list(range(len(progress)))
    ranks = enumerate(zip(progress, has_place, strict=True))
    return [rank for rank, (own, had) in ranks if own >= DIVIDED or (own >= 0 and had)]


class SparedGroup(SurvivingGroup):
    """Group of ranks that compute, and of spares that wait from `divide` on."""

    def __init__(self, world: World, num_spares: int) -> None:
        super().__init__(world)
        self.num_spares = num_spares
        self._num_places = world.size - num_spares
        self._everyone = world
        """World of all that live, spares too."""
        self._first = 0  # of those that compute, in that world
        self._seated = list(range(self._num_places))
        """Original ranks that have places, or had and are lost."""
        self._is_divided = False
        self._admitted: World | None = None
        self._sub_worlds: list[World] = []
        self._vacancies: list[tuple[int, int]] = []
        """Numbers of calls, each with the places that spares can take after it."""
        self._vacated: list[int] = []
        self._vacated_at = 0.0

    @property
    def num_living(self) -> int:
        return self._everyone.size

    @property
    def num_waiting(self) -> int:
        """Number of spares that could take places."""
        return self._everyone.size - self.size

    @property
    def has_vacancy(self) -> bool:
        """Return whether spares are to take places now, the same on all ranks that compute.

        A rank that is ahead may have passed this point before a loss, and so counts what it knew.
        """
        known = [vacant for calls, vacant in self._vacancies if calls < self._num_calls]
        return bool(known and known[-1])

    def divide(self) -> Sequence[int]:
        """Have the spares wait from now on, and return the original ranks of those that compute.
        Collective; `is_waiting` tells whether this one is not among them."""
        members = self.together(self._divide)
        self.is_waiting = self.original_rank >= self._num_places
        self._is_divided = True
        self._switch()
        vacant = max(0, min(self._num_places, self._everyone.size) - self.size)
        insort(self._vacancies, (self._num_calls, vacant), key=itemgetter(0))
        return members

    def admit(self, state: RunState, *, all_spares: bool) -> Admission:
        """Have spares take the places of lost ranks, or all of them come in; return the original
        ranks that compute from now on, and those that have come. Collective over those that
        compute, between two steps."""
        calls = self._num_calls
        members = self.together(lambda: self._admit(state, all_spares=all_spares))
        return self._admitted_at(calls, members, all_spares=all_spares)

    def take_place(self, state: RunState) -> Admission:
        """Wait, as a spare, until this rank is needed, and return as `admit`.

        Raises: RunFailedError when nobody is left who has the state.
        """
        while True:
            try:
                summons = json.loads(await_word(self._everyone, self._first))
                world = self._world_of(summons["members"])
                state.receive(world.group, summons["source"])
                break
            except Exception as error:
                if not is_recoverable(error):
                    raise
                self._recover()
        calls = self._num_calls = summons["calls"]
        self._last, self._progress, self._seated = None, None, summons["seated"]
        self._vacated, seconds = summons["vacated"], summons["seconds"]
        self._vacated_at = time.monotonic() - seconds
        self.is_waiting, self._is_divided = False, True
        arrivals = [world]

        def arrive() -> list[int]:
            if not arrivals:  # a rank was lost meanwhile
                return self._admit(state, all_spares=summons["all"])
            self._admitted = arrivals.pop()
            self._admitted.barrier("the arrival of spares")
            return list(self._admitted.original_ranks)

        members = self.together(arrive)
        return self._admitted_at(calls, members, all_spares=summons["all"])

    def _divide(self) -> list[int]:
        everyone = self._everyone
        if self.is_waiting or self.world is not everyone:  # a recovery has divided them
            return list(self.world.original_ranks)
        everyone.barrier("the beginning of the spares' wait")
        originals = everyone.original_ranks
        members = [rank for rank, own in enumerate(originals) if own < self._num_places]
        if everyone.rank in members:
            self._admitted = self._world_of(members)
        return [originals[rank] for rank in members]

    def _admit(self, state: RunState, *, all_spares: bool) -> list[int]:
        everyone, own = self._everyone, set(self.world.original_ranks)
        originals = everyone.original_ranks
        waiting = [rank for rank, number in enumerate(originals) if number not in own]
        if not all_spares:
            waiting = waiting[: max(0, self._num_places - len(own))]
        if not waiting:
            return list(self.world.original_ranks)
        members = [rank for rank, number in enumerate(originals) if number in own]
        members, is_sender = sorted([*members, *waiting]), everyone.rank == self._first
        if is_sender:
            summons = {
                "calls": self._num_calls,
                "members": members,
                "source": members.index(self._first),
                "all": all_spares,
                "seated": self._seated,
                "vacated": self._vacated,
                "seconds": time.monotonic() - self._vacated_at,
            }
            for rank in waiting:
                send_word(everyone, json.dumps(summons).encode(), rank)
        world = self._world_of(members)
        if is_sender:
            for rank in waiting:
                state.send(world.group, members.index(rank))
        world.barrier("the arrival of spares")
        self._admitted = world
        return [originals[rank] for rank in members]

    def _admitted_at(self, calls: int, members: Sequence[int], *, all_spares: bool) -> Admission:
        """Go on with those that were admitted. calls: number of this call."""
        self._switch()
        insort(self._vacancies, (calls, 0), key=itemgetter(0))
        joined = [rank for rank in members if rank not in self._seated]
        self._seated += joined
        lost, self._vacated = sorted(self._vacated), []
        seconds = time.monotonic() - self._vacated_at
        if all_spares:
            self._tell(lost, seconds)
        elif joined and self.rank == 0:
            event = ReplacedEvent(at_s=0.0, step=0, spares=joined, lost=lost, seconds=seconds)
            print(replaced_text(event, self.size), file=sys.stderr, flush=True)
        return Admission(members, joined, lost, seconds)

    def _world_of(self, members: Sequence[int]) -> World:
        """Return a world of these ranks of all that live."""
        if len(members) == self._everyone.size:
            return self._everyone
        made = sub_world(self._everyone, members)
        self._sub_worlds.append(made)
        return made

    def _switch(self) -> None:
        """Use the world that was made in the last call, unless a recovery has made another."""
        world, self._admitted = self._admitted, None
        if world is None:
            return
        self._enter(world)
        for former in self._sub_worlds:
            if former is not world:
                retire(former)
        self._sub_worlds = [each for each in self._sub_worlds if each is world]

    def _enter(self, world: World) -> None:
        if world is not self.world:
            self.world.hand_over(world)
        super()._enter(world)

    def _recover(self) -> None:
        self._admitted = None
        super()._recover()

    def _meet(self) -> Recovery:
        lost: list[int] = []
        seconds = 0.0
        while True:
            own = WAITING if self.is_waiting else self._num_calls + DIVIDED * self._is_divided
            found = recover(self._everyone, progress=own)
            self._everyone = everyone = found.world
            self._sub_worlds.clear()  # abandoned
            lost, seconds = [*lost, *found.lost], seconds + found.seconds
            has_place = [number < self._num_places for number in everyone.original_ranks]
            members = computing(found.progress, has_place)
            if not members:
                raise RunFailedError("all ranks that had the state of the run have died")
            self._first, world = members[0], everyone
            self.is_waiting = everyone.rank not in members
            vacant = max(0, min(self._num_places, everyone.size) - len(members))
            progress = tuple(found.progress[rank] % DIVIDED for rank in members)
            insort(self._vacancies, (max(progress), vacant), key=itemgetter(0))
            try:
                if not self.is_waiting:
                    world = self._world_of(members)
            except Exception as error:
                if not is_recoverable(error):
                    raise
                continue
            lost.sort()
            return replace(found, world=world, lost=tuple(lost), progress=progress, seconds=seconds)

    def _go_on(self, recovery: Recovery) -> None:
        """Tell of a loss, unless a spare is about to take the place: then with that."""
        if self.is_waiting:
            self._progress = None
        else:
            self._note_lost(recovery)
        for on_loss in self._followers:
            on_loss(recovery)

    def _note_lost(self, recovery: Recovery) -> None:
        if not self._vacated:
            self._vacated_at = time.monotonic() - recovery.seconds
        self._vacated += [rank for rank in recovery.lost if rank in self._seated]
        others = tuple(rank for rank in recovery.lost if rank not in self._seated)
        self._tell(others, recovery.seconds, spares=True)
        if not self.num_waiting:
            self._tell_vacated()

    def _tell_vacated(self) -> None:
        lost, self._vacated = sorted(self._vacated), []
        self._tell(lost, time.monotonic() - self._vacated_at)

    def _tell(self, lost: Sequence[int], seconds: float, *, spares: bool = False) -> None:
        """Print a loss on the first of the ranks that compute. spares: they waited."""
        if lost and self.rank == 0:
            event = RecoveredEvent(at_s=0.0, step=0, lost=list(lost), recovery_s=seconds)
            text = recovered_text(event, self.size, are_spares=spares)
            print(text, file=sys.stderr, flush=True)
