"""Ranks of which some may die: what they do together is done again by those who are left.

Where there are spares, these wait from `divide` on, and take the places of those that die, after
Fenix (Gamell et al. 2014, doi:10.1109/SC.2014.78). All ranks meet in each recovery; those that
compute have a world of their own then. Between two steps the survivors give a spare their state,
and it is one of them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.group import Group
from phalanx.comm.recovery import Recovery, finish, is_recoverable, recover
from phalanx.comm.sub_world import await_word, has_word, retire, send_word, sub_world
from phalanx.comm.wait_reporter import WaitReporter, current_wait
from phalanx.comm.world import World
from phalanx.errors import RunFailedError
from phalanx.parallel.places import DIVIDED, WAITING, Admission, Loss, Places, computing
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import RecoveredEvent, ReplacedEvent
from phalanx.records.rank_texts import recovered_text, replaced_text
from phalanx.records.spans import ClockReading, now_ns

T = TypeVar("T")


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
    """True if all of them come in."""
    seated: list[int]
    vacated: list[int]
    """The sender's `Places.seated` and `Places.vacated`."""
    seconds: float
    """Seconds since the death was noticed."""


class SurvivingGroup(WorldGroup):
    """Group that continues without ranks that die.

    All ranks make the same calls of `together` in the same order, each of which has the same result
    on every rank. When one fails because a rank died, the survivors meet; a rank that completed the
    call gives the others its result, or else the call is repeated. So no rank is ever ahead of
    another by more than one call, and none undoes anything.
    """

    def __init__(self, world: World, num_spares: int = 0) -> None:
        """num_spares: ranks, the last, that wait for places from `divide` on."""
        super().__init__(world)
        self.original_rank, self.num_spares = world.original_rank, num_spares
        self._places = Places(world.size - num_spares)
        self._everyone = world
        """World of all that live; `world` is that of those that compute, or, of a spare that waits,
        the same."""
        self._first = 0  # first rank that computes, in that world
        self._is_divided = self._has_stop_request = False
        self._admitted: World | None = None
        self._arriving: World | None = None
        self._sub_worlds: list[World] = []
        self._num_calls = 0
        self._last: Any = None  # result of the last call
        self._is_within = False
        self._progress: Sequence[int] | None = None  # progress of each rank at the last meeting
        self._followers: list[Callable[[Recovery], None]] = []
        self._reporter: WaitReporter | None = None
        self._num_meetings, self._is_meeting = 0, False

    @property
    def num_living(self) -> int:
        return self._everyone.size

    @property
    def has_vacancy(self) -> bool:
        """Return whether spares are to take places now, the same on all ranks that compute."""
        return self._places.has_vacancy(self._num_calls)

    def follow(self, on_loss: Callable[[Recovery], None]) -> None:
        self._followers.append(on_loss)

    def report_waits(self) -> None:
        """Report from now on how long this rank waits for others, if that is requested: a stopped
        or stuck rank is then killed. Not collective."""
        if self._reporter is None:
            thread = threading.get_ident()
            self._reporter = WaitReporter(self.world, lambda: self._current_wait(thread))

    def _current_wait(self, thread: int) -> Hashable | None:
        return self._num_meetings if self._is_meeting else current_wait(self.world, thread)

    def together(self, compute: Callable[[], T]) -> T:
        """Return what `compute` returns, the same on every rank, through the loss of ranks.

        compute: may call the group and its world; made again from the beginning after a loss.
        """
        if self._is_within:  # a part of a call
            return compute()
        while True:
            self._is_within = True
            try:
                result = self._settle(compute)
            except Exception as error:
                if not is_recoverable(error):
                    raise
                self._recover()
                continue
            finally:
                self._is_within = False
            self._num_calls += 1
            self._last = result
            return result

    def checkpoint_group(self) -> Group | None:
        """Return the group of the world: Open MPI may hang in creating one of which a rank dies."""
        return self.world.group if self.size > 1 else None

    def close(self) -> None:
        """End when all survivors are here: a rank that recovers needs what this rank knows."""
        while True:
            try:
                self._settle(lambda: None)
                with self._meeting():
                    if finish(self.world):
                        break
            except Exception as error:
                if not is_recoverable(error):
                    raise
            self._recover()
        if self._reporter is not None:
            self._reporter.close()

    # -- spares --------------------------------------------------------------------------------

    def divide(self) -> Sequence[int]:
        """Make the spares wait from now on, and return the original ranks of those that compute.
        Collective; `is_waiting` is True on spares."""
        members = self.together(self._divide)
        self.is_waiting = self.original_rank >= self._places.num_places
        self._is_divided = True
        self._enter_admitted()
        self._places.note_vacant(self._num_calls, self.world.size, self.num_living)
        return members

    def admit(self, state: RunState, *, all_spares: bool) -> Admission:
        """Let spares replace lost ranks, or admit all spares; return the original ranks that
        compute from now on, and those that joined. Collective over computing ranks, between two
        steps."""
        calls = self._num_calls
        members = self.together(lambda: self._admit(state, calls, all_spares=all_spares))
        return self._note_admission(calls, members, all_spares=all_spares)

    def has_stop_request(self) -> bool:
        if self._everyone.size > self.world.size and self._everyone.rank == self._first:
            self._has_stop_request |= has_word(self._everyone)
        return self._has_stop_request

    def take_place(self, state: RunState, is_asked: Callable[[], bool]) -> Admission:
        """Wait, as a spare, until this rank is needed, and return as `admit`. is_asked: returns
        whether this rank was asked to stop, which it reports to the first computing rank.

        Raises: RunFailedError when no survivor has the state.
        """
        while True:
            try:
                summons = self._await_summons(state, is_asked)
                break
            except Exception as error:
                if not is_recoverable(error):
                    raise
                self._recover()
        self._num_calls, self._last, self._progress = summons.calls, None, None
        members = self.together(lambda: self._arrive(state, summons))
        return self._note_admission(summons.calls, members, all_spares=summons.all_spares)

    def _divide(self) -> list[int]:
        everyone = self._everyone
        if self.is_waiting or self.world is not everyone:  # a recovery has divided them
            return list(self.world.original_ranks)
        everyone.barrier("the beginning of the spares' wait")
        originals, num_places = everyone.original_ranks, self._places.num_places
        members = [rank for rank, own in enumerate(originals) if own < num_places]
        if everyone.rank in members:
            self._admitted = self._world_of(members)
        return [originals[rank] for rank in members]

    def _admit(self, state: RunState, calls: int, *, all_spares: bool) -> list[int]:
        """Admit as many spares as places are vacant, or all; return the original ranks of those
        that compute then. calls: made before this one."""
        everyone, own = self._everyone, set(self.world.original_ranks)
        originals = everyone.original_ranks
        waiting = [rank for rank, number in enumerate(originals) if number not in own]
        if not all_spares:
            waiting = waiting[: max(0, self._places.num_places - len(own))]
        if not waiting:
            return list(self.world.original_ranks)
        members = [rank for rank, number in enumerate(originals) if number in own]
        members, is_sender = sorted([*members, *waiting]), everyone.rank == self._first
        if is_sender:
            source, places = members.index(self._first), self._places
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

    def _await_summons(self, state: RunState, is_asked: Callable[[], bool]) -> Summons:
        """Wait, as a spare, until this rank is needed and has the state."""
        word = await_word(self._everyone, self._first, is_asked)
        summons = Summons(*json.loads(word))
        world = self._world_of(summons.members)
        state.receive(world.group, summons.source)
        self._places.take_over(summons.seated, summons.vacated, summons.seconds)
        self.is_waiting, self._is_divided, self._arriving = False, True, world
        return summons

    def _arrive(self, state: RunState, summons: Summons) -> list[int]:
        """Join the computing ranks, which are in `admit`, and return as they do."""
        world, self._arriving = self._arriving, None
        if world is None:  # a rank was lost meanwhile
            return self._admit(state, summons.calls, all_spares=summons.all_spares)
        self._admitted = world
        world.barrier("the arrival of spares")
        return list(world.original_ranks)

    def _enter_admitted(self) -> None:
        """Use the world that the last call made, if any, and if no recovery happened since."""
        world, self._admitted = self._admitted, None
        if world is None:
            return
        self._enter(world)
        for former in self._sub_worlds:
            if former is not world:
                retire(former)
        self._sub_worlds = [each for each in self._sub_worlds if each is world]

    def _note_admission(self, calls: int, members: Sequence[int], *, all_spares: bool) -> Admission:
        """Go on with those that were admitted. calls: made before."""
        self._enter_admitted()
        admission = self._places.admit(calls, members)
        _, joined, lost, seconds = admission
        if all_spares:
            self._tell(Loss(lost, seconds))
        elif joined and self.rank == 0:
            event = ReplacedEvent(
                at_s=0.0, step=0, spares=list(joined), lost=list(lost), seconds=seconds
            )
            print(replaced_text(event, self.size), file=sys.stderr, flush=True)
        return admission

    # -- calls that all make -------------------------------------------------------------------

    def barrier(self) -> None:
        self.together(super().barrier)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return the rows on every rank: any of them may be rank 0 when it shares what they say."""
        return self.exchange(values)

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        return self.together(lambda: super(SurvivingGroup, self).exchange(values))

    def sum(self, values: Sequence[float]) -> list[float]:
        return self.together(lambda: super(SurvivingGroup, self).sum(values))

    def share(self, text: str) -> str:
        return self.together(lambda: super(SurvivingGroup, self).share(text))

    def broadcast(self, values: NDArray[np.uint8], root: int = 0) -> None:
        values[:] = self.together(lambda: self.world.share(values.copy(), root=root))

    def clock(self) -> ClockReading:
        readings = list[ClockReading]()
        self.together(lambda: readings.append(super(SurvivingGroup, self).clock()))
        return readings[-1] if readings else ClockReading(at_ns=now_ns(), offset_ns=0)

    @torch.no_grad()
    def synchronize_buffers(self, model: nn.Module) -> None:
        """Do nothing: whoever survives keeps buffers the same on all ranks."""

    def _settle(self, compute: Callable[[], T]) -> T:
        """Return the result of a rank that had completed this call before a loss, or else that of
        `compute`."""
        if self._progress is not None:
            progress = self._progress
            most = max(progress)
            if min(progress) < most:
                holder = progress.index(most)
                result: T = self.world.share(_whole(self._last), root=holder)
                if self._num_calls < most:
                    self._progress = None
                    return result
            self._progress = None
        return compute()

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Count the block as a wait of this rank for its peers."""
        self._num_meetings, self._is_meeting = self._num_meetings + 1, True
        try:
            yield
        finally:
            self._is_meeting = False

    # -- the loss of ranks ---------------------------------------------------------------------

    def _recover(self) -> None:
        """Meet the ranks that are left, as often as it takes, and tell of the loss, in the new
        world, unless a spare is about to take the place: then with that."""
        with self._meeting():
            recovery = self._meet()
        self._enter(recovery.world)
        lost, seconds = recovery.lost, recovery.seconds
        self.lost, self.recovery_s = (*self.lost, *lost), self.recovery_s + seconds
        self._progress = None if self.is_waiting else recovery.progress
        if not self.is_waiting:
            is_replaced = self._everyone.size > self.world.size
            for loss in self._places.lose(lost, seconds, are_replaced=is_replaced):
                self._tell(loss)
        for on_loss in self._followers:
            on_loss(recovery)

    def _meet(self) -> Recovery:
        """Meet all that are left, and return a world of those of them that compute.

        Raises: RunFailedError when no survivor has the state.
        """
        self._admitted = None
        lost: list[int] = []
        began = time.monotonic()
        while True:
            own = WAITING if self.is_waiting else self._num_calls + DIVIDED * self._is_divided
            found = recover(self._everyone, progress=own)
            self._everyone = everyone = found.world
            self._sub_worlds.clear()  # abandoned
            lost += found.lost
            has_place = [number < self._places.num_places for number in everyone.original_ranks]
            members = computing(found.progress, has_place)
            if not members:
                raise RunFailedError("the run is lost: all ranks with its state have died")
            self._first, world = members[0], everyone
            self.is_waiting = everyone.rank not in members
            progress = tuple(found.progress[rank] % DIVIDED for rank in members)
            self._places.note_vacant(max(progress), len(members), everyone.size)
            try:
                if not self.is_waiting:
                    world = self._world_of(members)
            except Exception as error:
                if not is_recoverable(error):
                    raise
                continue
            lost.sort()
            seconds = time.monotonic() - began  # includes making the world of those that compute
            return replace(found, world=world, lost=tuple(lost), progress=progress, seconds=seconds)

    def _world_of(self, members: Sequence[int]) -> World:
        """Return a world of these ranks of all that live."""
        if len(members) == self._everyone.size:
            return self._everyone
        made = sub_world(self._everyone, members)
        self._sub_worlds.append(made)
        return made

    def _enter(self, world: World) -> None:
        """Use this world from now on."""
        if world is not self.world:
            self.world.hand_over(world)
        self.world = world
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.node = world.group.nodes[world.rank]

    def _tell(self, loss: Loss) -> None:
        """Print a loss on the first of the ranks that compute."""
        if loss.lost and self.rank == 0:
            event = RecoveredEvent(at_s=0.0, step=0, lost=list(loss.lost), recovery_s=loss.seconds)
            text = recovered_text(event, self.size, are_spares=loss.were_waiting)
            print(text, file=sys.stderr, flush=True)


def _whole(result: Any) -> Any:
    """Return the result with tensors that have memory of their own, which is sent with them."""
    if isinstance(result, list):
        return [item.clone() if isinstance(item, Tensor) else item for item in result]
    return result
