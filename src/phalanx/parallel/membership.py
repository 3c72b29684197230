"""The ranks that live: some compute, others wait as spares, and take the places of those that die.

After Fenix (Gamell et al. 2014, doi:10.1109/SC.2014.78). All ranks meet in each recovery; those
that compute have a world of their own then. Between two steps the survivors give a spare their
state, and it is one of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from phalanx.comm.group import Group
from phalanx.comm.recovery import Recovery, is_recoverable, recover
from phalanx.comm.sub_world import await_word, has_word, retire, send_word, sub_world
from phalanx.comm.world import World
from phalanx.errors import RunFailedError
from phalanx.parallel.places import Places

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


class Summons(NamedTuple):
    """Word to a spare that it is needed."""

    calls: int
    """Calls that the group has made so far."""
    members: list[int]
    """Ranks that compute from now on, of all that live."""
    source: int
    """Number among these of the rank that sends the state."""
    all_spares: bool
    """Whether all of them come in."""
    seated: list[int]
    vacated: list[int]
    """The sender's `Places.seated` and `Places.vacated`."""
    seconds: float
    """Seconds since the death was noticed."""


def computing(progress: Sequence[int], has_place: Sequence[bool]) -> list[int]:
    """Return the ranks that compute, from the progress of all that are left. Pure.

    has_place: whether each had a place from the start. Before the spares wait all ranks compute.
    """
    if all(0 <= own < DIVIDED for own in progress):
        return list(range(len(progress)))
    ranks = enumerate(zip(progress, has_place, strict=True))
    return [rank for rank, (own, had) in ranks if own >= DIVIDED or (own >= 0 and had)]


class Membership:
    """The ranks that live, and those of them that compute. Without spares all do.

    `divide`, `admit` and `arrive` are made within a call of the group, which may be made again
    after a loss; `settle` comes when the call is completed.
    """

    def __init__(self, world: World, num_spares: int = 0) -> None:
        self.world = world
        """World of those that compute; of a spare that waits: of all that live."""
        self.places = Places(world.size - num_spares)
        self.is_waiting = False
        """Whether this rank is a spare that waits."""
        self._everyone = world
        self._first = 0  # of those that compute, in that world
        self._is_divided = self._has_stop_request = False
        self._admitted: World | None = None
        self._arriving: World | None = None
        self._sub_worlds: list[World] = []

    @property
    def num_living(self) -> int:
        """Number of ranks that live, spares too."""
        return self._everyone.size

    @property
    def num_waiting(self) -> int:
        """Number of spares that could take places."""
        return self._everyone.size - self.world.size

    def divide(self) -> list[int]:
        """Have the spares wait from now on, and return the original ranks of those that compute."""
        everyone = self._everyone
        if self.is_waiting or self.world is not everyone:  # a recovery has divided them
            return list(self.world.original_ranks)
        everyone.barrier("the beginning of the spares' wait")
        originals, num_places = everyone.original_ranks, self.places.num_places
        members = [rank for rank, own in enumerate(originals) if own < num_places]
        if everyone.rank in members:
            self._admitted = self._world_of(members)
        return [originals[rank] for rank in members]

    def settle_division(self, calls: int) -> World | None:
        """Return as `settle`, after `divide`. calls: made, with that one."""
        own = self._everyone.original_ranks[self._everyone.rank]
        self.is_waiting = own >= self.places.num_places
        self._is_divided = True
        world = self.settle()
        self.places.note_vacant(calls, self.world.size, self.num_living)
        return world

    def admit(self, state: RunState, calls: int, *, all_spares: bool) -> list[int]:
        """Have as many spares come in as places are vacant, or all; return the original ranks of
        those that compute then. calls: made before this one."""
        everyone, own = self._everyone, set(self.world.original_ranks)
        originals = everyone.original_ranks
        waiting = [rank for rank, number in enumerate(originals) if number not in own]
        if not all_spares:
            waiting = waiting[: max(0, self.places.num_places - len(own))]
        if not waiting:
            return list(self.world.original_ranks)
        members = [rank for rank, number in enumerate(originals) if number in own]
        members, is_sender = sorted([*members, *waiting]), everyone.rank == self._first
        if is_sender:
            source, places = members.index(self._first), self.places
            seated, vacated, seconds = places.seated, places.vacated, places.seconds
            summons = Summons(calls, members, source, all_spares, seated, vacated, seconds)
            for rank in waiting:
                send_word(everyone, json.dumps(summons).encode(), rank)
        world = self._world_of(members)
        if is_sender:
            for rank in waiting:
                state.send(world.group, members.index(rank))
        world.barrier("the arrival of spares")
        self._admitted = world
        return [originals[rank] for rank in members]

    def has_stop_request(self) -> bool:
        """Return whether a spare that waits has told this rank that it was asked to stop."""
        if self.num_waiting and self._everyone.rank == self._first:
            self._has_stop_request |= has_word(self._everyone)
        return self._has_stop_request

    def await_summons(self, state: RunState, is_asked: Callable[[], bool]) -> Summons:
        """Wait, as a spare, until this rank is needed, and has got the state. is_asked: returns
        whether it was asked to stop, of which the first of those that compute is told."""
        word = await_word(self._everyone, self._first, is_asked)
        summons = Summons(*json.loads(word))
        world = self._world_of(summons.members)
        state.receive(world.group, summons.source)
        self.places.take_over(summons.seated, summons.vacated, summons.seconds)
        self.is_waiting, self._is_divided, self._arriving = False, True, world
        return summons

    def arrive(self, state: RunState, summons: Summons) -> list[int]:
        """Come to those that compute, which are in `admit`, and return as they do."""
        world, self._arriving = self._arriving, None
        if world is None:  # a rank was lost meanwhile
            return self.admit(state, summons.calls, all_spares=summons.all_spares)
        self._admitted = world
        world.barrier("the arrival of spares")
        return list(world.original_ranks)

    def settle(self) -> World | None:
        """Return the world to use from now on, which was made in the last call; None: the same, or
        that of a recovery since."""
        world, self._admitted = self._admitted, None
        if world is None:
            return None
        self._use(world)
        for former in self._sub_worlds:
            if former is not world:
                retire(former)
        self._sub_worlds = [each for each in self._sub_worlds if each is world]
        return world

    def recover(self, calls: int) -> Recovery:
        """Meet all that are left, and return a world of those of them that compute. calls: made.

        Raises: RunFailedError when nobody is left who has the state.
        """
        self._admitted = None
        lost: list[int] = []
        began = time.monotonic()
        while True:
            own = WAITING if self.is_waiting else calls + DIVIDED * self._is_divided
            found = recover(self._everyone, progress=own)
            self._everyone = everyone = found.world
            self._sub_worlds.clear()  # abandoned
            lost += found.lost
            has_place = [number < self.places.num_places for number in everyone.original_ranks]
            members = computing(found.progress, has_place)
            if not members:
                raise RunFailedError("the run is lost: all ranks that had its state have died")
            self._first, world = members[0], everyone
            self.is_waiting = everyone.rank not in members
            progress = tuple(found.progress[rank] % DIVIDED for rank in members)
            self.places.note_vacant(max(progress), len(members), everyone.size)
            try:
                if not self.is_waiting:
                    world = self._world_of(members)
            except Exception as error:
                if not is_recoverable(error):
                    raise
                continue
            self._use(world)
            lost.sort()
            seconds = time.monotonic() - began  # with the world of those that compute
            return replace(found, world=world, lost=tuple(lost), progress=progress, seconds=seconds)

    def _world_of(self, members: Sequence[int]) -> World:
        """Return a world of these ranks of all that live."""
        if len(members) == self._everyone.size:
            return self._everyone
        made = sub_world(self._everyone, members)
        self._sub_worlds.append(made)
        return made

    def _use(self, world: World) -> None:
        if world is not self.world:
            self.world.hand_over(world)
        self.world = world
