"""Ranks of which some may die: what they do together is done again by those who are left.

Where there are spares, these wait from `divide` on, and take the places of those that die.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.group import Group
from phalanx.comm.recovery import Recovery, finish, is_recoverable
from phalanx.comm.wait_reporter import WaitReporter, current_wait
from phalanx.comm.world import World
from phalanx.parallel.membership import Membership, RunState
from phalanx.parallel.places import Admission, Loss
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import RecoveredEvent, ReplacedEvent
from phalanx.records.rank_texts import recovered_text, replaced_text
from phalanx.records.spans import ClockReading, now_ns

T = TypeVar("T")


class SurvivingGroup(WorldGroup):
    """Group that goes on without the ranks that die.

    All ranks make the same calls of `together` in the same order, each of which has the same result
    on every rank. When one fails because a rank has died, those who are left meet; a rank may have
    completed the call that others did not, and gives them its result, or else it is made again.
    So no rank is ever ahead of another by more than one call, and none undoes anything.
    """

    def __init__(self, world: World, num_spares: int = 0) -> None:
        """num_spares: ranks, the last, that wait for places from `divide` on."""
        super().__init__(world)
        self.original_rank, self.num_spares = world.original_rank, num_spares
        self._membership = Membership(world, num_spares)
        self._num_calls = 0
        self._last: Any = None  # result of the last call
        self._is_within = False
        self._progress: Sequence[int] | None = None  # of the ranks, when they last met
        self._followers: list[Callable[[Recovery], None]] = []
        self._reporter: WaitReporter | None = None
        self._num_meetings, self._is_meeting = 0, False

    @property
    def num_living(self) -> int:
        return self._membership.num_living

    @property
    def is_waiting(self) -> bool:
        return self._membership.is_waiting

    @property
    def has_vacancy(self) -> bool:
        """Return whether spares are to take places now, the same on all ranks that compute."""
        return self._membership.places.has_vacancy(self._num_calls)

    def follow(self, on_loss: Callable[[Recovery], None]) -> None:
        self._followers.append(on_loss)

    def report_waits(self) -> None:
        """Report from now on how long this rank waits for others, where it is asked for: one of
        them that is stopped or stuck is killed then. Not collective."""
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
        """Return the world's own: Open MPI may hang in making one of which a rank dies."""
        return self.world.group if self.size > 1 else None

    def close(self) -> None:
        """End when all who are left have come here; who recovers needs what this rank knows."""
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

    def divide(self) -> Sequence[int]:
        """Have the spares wait from now on, and return the original ranks of those that compute.
        Collective; `is_waiting` tells whether this one is not among them."""
        members = self.together(self._membership.divide)
        if (world := self._membership.settle_division(self._num_calls)) is not None:
            self._enter(world)
        return members

    def admit(self, state: RunState, *, all_spares: bool) -> Admission:
        """Have spares take the places of lost ranks, or all of them come in; return the original
        ranks that compute from now on, and those that have come. Collective over those that
        compute, between two steps."""
        calls, membership = self._num_calls, self._membership
        members = self.together(lambda: membership.admit(state, calls, all_spares=all_spares))
        return self._note_admission(calls, members, all_spares=all_spares)

    def has_stop_request(self) -> bool:
        return self._membership.has_stop_request()

    def take_place(self, state: RunState, is_asked: Callable[[], bool]) -> Admission:
        """Wait, as a spare, until this rank is needed, and return as `admit`. is_asked: returns
        whether this rank was asked to stop: the others are told.

        Raises: RunFailedError when nobody is left who has the state.
        """
        membership = self._membership
        while True:
            try:
                summons = membership.await_summons(state, is_asked)
                break
            except Exception as error:
                if not is_recoverable(error):
                    raise
                self._recover()
        self._num_calls, self._last, self._progress = summons.calls, None, None
        members = self.together(lambda: membership.arrive(state, summons))
        return self._note_admission(summons.calls, members, all_spares=summons.all_spares)

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
        """Count the block as a wait of this rank for the others."""
        self._num_meetings, self._is_meeting = self._num_meetings + 1, True
        try:
            yield
        finally:
            self._is_meeting = False

    def _recover(self) -> None:
        """Meet the ranks that are left, as often as it takes."""
        with self._meeting():
            recovery = self._membership.recover(self._num_calls)
        self._enter(recovery.world)
        self.lost = (*self.lost, *recovery.lost)
        self.recovery_s += recovery.seconds
        self._progress = recovery.progress
        self._go_on(recovery)

    def _enter(self, world: World) -> None:
        """Use this world from now on."""
        self.world = world
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.node = world.group.nodes[world.rank]

    def _go_on(self, recovery: Recovery) -> None:
        """Tell of a loss, in the new world, unless a spare is about to take the place: then with
        that."""
        membership = self._membership
        if membership.is_waiting:
            self._progress = None
        else:
            is_replaced = membership.num_waiting > 0
            lost, seconds = recovery.lost, recovery.seconds
            for loss in membership.places.lose(lost, seconds, are_replaced=is_replaced):
                self._tell(loss)
        for on_loss in self._followers:
            on_loss(recovery)

    def _note_admission(self, calls: int, members: Sequence[int], *, all_spares: bool) -> Admission:
        """Go on with those that were admitted. calls: made before."""
        if (world := self._membership.settle()) is not None:
            self._enter(world)
        admission = self._membership.places.admit(calls, members)
        _, joined, lost, seconds = admission
        if all_spares:
            self._tell(Loss(lost, seconds))
        elif joined and self.rank == 0:
            event = ReplacedEvent(
                at_s=0.0, step=0, spares=list(joined), lost=list(lost), seconds=seconds
            )
            print(replaced_text(event, self.size), file=sys.stderr, flush=True)
        return admission

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
