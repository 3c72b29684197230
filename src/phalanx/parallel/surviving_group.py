"""Ranks of which some may die: what they do together is done again by those who are left."""

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

from phalanx.comm.recovery import Recovery, finish, is_recoverable, recover
from phalanx.comm.wait_reporter import WaitReporter, current_wait
from phalanx.comm.world import World
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.rank_texts import recovered_text
from phalanx.records.schema import RecoveredEvent
from phalanx.records.spans import ClockReading, now_ns

T = TypeVar("T")


class SurvivingGroup(WorldGroup):
    """Group that goes on without the ranks that die.

    All ranks make the same calls of `together` in the same order, each of which has the same result
    on every rank. When one fails because a rank has died, those who are left meet; a rank may have
    completed the call that others did not, and gives them its result, or else it is made again.
    So no rank is ever ahead of another by more than one call, and none undoes anything.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.original_rank = world.original_rank
        self._num_calls = 0
        self._last: Any = None  # result of the last call
        self._is_within = False
        self._progress: Sequence[int] | None = None  # of the ranks, when they last met
        self._followers: list[Callable[[Recovery], None]] = []
        self._reporter: WaitReporter | None = None
        self._num_meetings, self._is_meeting = 0, False

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
            recovery = self._meet()
        self._enter(recovery.world)
        self.lost = (*self.lost, *recovery.lost)
        self.recovery_s += recovery.seconds
        self._progress = recovery.progress
        self._go_on(recovery)

    def _meet(self) -> Recovery:
        """Return a world of the ranks that are left."""
        return recover(self.world, progress=self._num_calls)

    def _enter(self, world: World) -> None:
        """Use another world from now on."""
        self.world = world
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.node, self._checkpoint_group = world.group.nodes[world.rank], None

    def _go_on(self, recovery: Recovery) -> None:
        """Tell of a loss, in the new world."""
        if self.rank == 0:
            print(describe(recovery), file=sys.stderr, flush=True)
        for on_loss in self._followers:
            on_loss(recovery)


def _whole(result: Any) -> Any:
    """Return the result with tensors that have memory of their own, which is sent with them."""
    if isinstance(result, list):
        return [item.clone() if isinstance(item, Tensor) else item for item in result]
    return result


def describe(recovery: Recovery) -> str:
    """Return the loss in a line."""
    event = RecoveredEvent(at_s=0.0, step=0, lost=list(recovery.lost), recovery_s=recovery.seconds)
    return recovered_text(event, len(recovery.world.original_ranks))
