"""Departure of a rank from its loop before the end, which is for all ranks or for none."""

from __future__ import annotations

import atexit
import os

from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.failure import end_program


class Departure:
    """One rank's way out of its loop, by `break` or by the end of its program.

    Where it leaves early, it agrees with its peers before anything else that is collective, and at
    the end of the program: they may all have left after the same step.
    """

    def __init__(self, group: RunGroup) -> None:
        self._group = group
        self._steps: int | None = None
        self._has_agreed = group.size == 1
        self._pid = os.getpid()
        if not self._has_agreed:
            atexit.register(self._end)

    def note(self, steps: int) -> None:
        """Note that this rank has left its loop after `steps` updates."""
        self._steps = steps

    def agree(self) -> None:
        """Wait until all ranks have left after the same step, if this one has. Collective then.

        Raises: UserError where others have not, at the latest after the timeout of the run.
        """
        if self._steps is None or self._has_agreed:
            return
        group, self._has_agreed = self._group, True
        steps = [0.0] * group.size
        steps[group.rank] = self._steps
        here = f"rank {group.rank} left its loop after {self._steps} updates"
        mend = (
            "end it on all ranks after the same one, say by a number that run.reduce gives all, or "
            "by steps="
        )
        try:
            steps = group.sum(steps)
        except Exception as error:
            raise UserError(f"{here}, and other ranks did not: {mend} ({error})") from error
        if len(set(steps)) > 1:
            there = ", ".join(f"rank {rank} after {n:g}" for rank, n in enumerate(steps))
            raise UserError(f"the ranks left their loops after different updates: {there}: {mend}")

    def close(self) -> None:
        """Forget about the end of the program: the run has ended before."""
        self._has_agreed = True
        atexit.unregister(self._end)

    def _end(self) -> None:
        if self._has_agreed or os.getpid() != self._pid:
            return
        self.note(self._steps or 0)
        try:
            self.agree()
        except UserError as error:
            end_program(type(error), error, error.__traceback__)
