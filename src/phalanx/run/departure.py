"""Departure of a rank from its loop before the end, which is for all ranks or for none."""

from __future__ import annotations

import atexit
import dis
import inspect
import os
from collections.abc import Callable
from types import FrameType

from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.failure import end_program

MEND = "end it on all ranks after the same one, by a number that run.reduce gives all, or by steps="

# Instructions of CPython.
_DROPS = {"POP_TOP", "POP_ITER"}
_IS_PAUSED = {"YIELD_VALUE", "RESUME", "SEND", "JUMP_BACKWARD_NO_INTERRUPT"}


class Departure:
    """One rank's way out of its loop, by `break` or by the end of its program.

    Where it leaves early, it tells its peers, and agrees with them before anything else that is
    collective, and at the end of the program: they may all have left after the same step, and
    where that was by `break`, the run has come to its end.
    """

    def __init__(self, group: RunGroup, gather: Callable[[], None] = lambda: None) -> None:
        """gather: called when all have left, before they agree. Collective."""
        self._group, self._gather = group, gather
        self._steps: int | None = None
        self._close_run: Callable[[], None] | None = None
        self._has_agreed = False
        self._pid = os.getpid()
        if group.size > 1:
            atexit.register(self._end)

    @property
    def has_left(self) -> bool:
        """Return whether this rank has left its loop early."""
        return self._steps is not None

    def note(self, steps: int, close_run: Callable[[], None] | None = None) -> None:
        """Note that this rank has left its loop after `steps` updates.

        close_run: called where all ranks have given it, at the end of the program or when another
        run starts.
        """
        self._steps, self._close_run = steps, close_run
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
            own = [0.0] * 2 * group.size
            own[2 * group.rank : 2 * group.rank + 2] = self._steps, self._close_run is not None
            values = group.sum(own)
        except Exception as error:
            here = f"rank {group.rank} left its loop after {self._steps} updates"
            raise UserError(f"{here}, and other ranks did not: {MEND} ({error})") from error
        steps = values[::2]
        if not all(values[1::2]):
            self._close_run = None
        if len(set(steps)) > 1:
            there = ", ".join(f"rank {rank} after {n:g}" for rank, n in enumerate(steps))
            raise UserError(f"the ranks left their loops after different updates: {there}: {MEND}")

    def close(self) -> None:
        """Close the run if all ranks want that. Collective.

        Raises: UserError as `agree`.
        """
        if os.getpid() == self._pid:
            self.agree()
            if self._close_run is not None:
                self._close_run()

    def cancel(self) -> None:
        """Forget about the end of the program: the run has ended before."""
        self._has_agreed, self._close_run = True, None
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


def leaves_by_break(frame: FrameType | None) -> bool:
    """Return whether a for loop in `frame`, whose iterator is dropped now, is left by `break` or
    `return`.

    An exception drops it, too, at the instruction that raised it; whether the program catches it
    further out is not known then.
    frame: the caller of a generator that gets GeneratorExit; other generators may lie between.
    """
    while frame and frame.f_code.co_flags & inspect.CO_GENERATOR and _name_at(frame) in _IS_PAUSED:
        frame = frame.f_back
    return frame is not None and _name_at(frame) in _DROPS


def _name_at(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]
