"""Departure of a rank from its loop, before the end or at it, which is for all ranks or for none.

A program evaluates its model after the loop, on any number of ranks, without a word about closing:
the ranks of a run whose loop has begun stay together until then.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import CodeType, FrameType

from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.failure import end_program

MEND = "end it on all ranks after the same update, by a result of run.reduce or by steps="


class Departure:
    """One rank's way out of its loop, by `break` or by the end of its program.

    Where it leaves early, it tells its peers, and agrees with them before anything else that is
    collective, and at the end of the program: they may all have left after the same step.
    """

    def __init__(self, group: RunGroup, gather: Callable[[], None] = lambda: None) -> None:
        """gather: called when all have left, before they agree. Collective."""
        self._group, self._gather = group, gather
        self._steps: int | None = None
        self._has_agreed = self._has_failed = False
        self._shown: ShownError | None = None
        self._pid = os.getpid()
        if group.size > 1:
            atexit.register(self._end)

    def begin(self, frame: FrameType) -> None:
        """Begin the loop. frame: as of `ShownError`."""
        self._shown = ShownError(frame)

    @property
    def has_begun(self) -> bool:
        """Return whether the loop has begun."""
        return self._shown is not None

    @property
    def has_failed(self) -> bool:
        """Return whether an error of this rank is known to have ended the loop."""
        return self._has_failed or (self._shown is not None and self._shown.has_ended_loop())

    @property
    def has_left(self) -> bool:
        """Return whether this rank has left its loop early."""
        return self._steps is not None

    def note(self, steps: int) -> None:
        """Note that this rank has left its loop after `steps` updates."""
        self._steps = steps
        self._group.depart(f"left its loop after {steps} updates")

    def agree(self) -> None:
        """Wait until all ranks have left after the same step, if this one has. Collective then.

        Raises: UserError where others have not, at the latest after the timeout of the run.
        """
        if self._steps is None or self._has_agreed:
            return
        group, self._has_agreed = self._group, True
        try:
            self._gather()
            own = [0.0] * group.size
            own[group.rank] = self._steps
            steps = group.sum(own)
        except Exception as error:
            here = f"rank {group.rank} left its loop after {self._steps} updates"
            raise UserError(f"{here}, and other ranks did not: {MEND} ({error})") from error
        if len(set(steps)) > 1:
            there = ", ".join(f"rank {rank} after {n:g}" for rank, n in enumerate(steps))
            raise UserError(f"the ranks left their loops after different updates: {there}: {MEND}")

    def fail(self) -> None:
        """Note an error that ends the loop, and says why."""
        self._has_failed = True
        self.cancel()

    def cancel(self) -> None:
        """Forget about the end of the program: the run has ended before."""
        self._has_agreed = True
        atexit.unregister(self._end)

    def _end(self) -> None:
        if self._has_agreed or os.getpid() != self._pid:
            return
        if self._steps is None:
            self.note(0)
        try:
            self.agree()
        except UserError as error:
            end_program(type(error), error, error.__traceback__)


class ShownError:
    """The error that Python or a shell has shown last, such as that of a cell of a notebook: an
    exception that nobody has caught, of which nothing else tells where the program goes on."""

    def __init__(self, frame: FrameType) -> None:
        """frame: in which the loop begins, or of a generator that it iterates."""
        while frame.f_code.co_flags & CO_GENERATOR and frame.f_back is not None:
            frame = frame.f_back
        self._code: CodeType = frame.f_code
        self._before = id(_last_value())

    def has_ended_loop(self) -> bool:
        """Return whether there is one since, which came through the code of the loop."""
        error = _last_value()
        trace = None if error is None or id(error) == self._before else error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self._code:
                return True
            trace = trace.tb_next
        return False


def _last_value() -> BaseException | None:
    return getattr(sys, "last_value", None)


_BEGUN: list[tuple[Callable[[], bool], Callable[[], None]]] = []
"""Runs whose loop has begun: functions that return whether it is over, and that close the run."""


def close_later(is_over: Callable[[], bool], close: Callable[[], None]) -> None:
    """Close a run when the program ends, or another one starts after the end of its loop.

    is_over: returns whether the loop has ended or was left. close: collective."""
    _BEGUN.append((is_over, close))
    atexit.register(_close_at_exit, os.getpid())


def close_ended(*, at_exit: bool = False) -> None:
    """Close the runs whose loop is over, in their order. Collective. at_exit: all of them."""
    for run in [*_BEGUN]:
        is_over, close = run
        if at_exit or is_over():
            _BEGUN.remove(run)
            close()


def _close_at_exit(pid: int) -> None:
    if os.getpid() != pid:
        return
    try:
        close_ended(at_exit=True)
    except Exception as error:  # noqa: BLE001  Python would print it, and the peers would wait
        end_program(type(error), error, error.__traceback__)
