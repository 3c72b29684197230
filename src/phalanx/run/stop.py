"""End of a run before its time, asked for by a signal: a checkpoint first, then all ranks together.

Batch systems send a signal some minutes before they end a job. What has been trained by then is
kept, and the same command goes on from there.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

from phalanx.errors import EXIT_STOPPED
from phalanx.parallel.run_group import RunGroup
from phalanx.records.schema import Outcome, stopped_text

STOP_SIGNAL = signal.SIGUSR1
ASK_INTERVAL_S = 1.0
"""Between two times at which the ranks ask each other. It costs one small sum over the ranks."""
MAX_STEPS = 10_000
"""Between two such times, however short a step is."""


class Stopped(SystemExit):  # no error: a request
    """The run has ended as it was asked to, and its checkpoint is written."""

    def __init__(self, steps: int) -> None:
        super().__init__(EXIT_STOPPED)
        self.steps = steps
        """Updates made so far."""

    def __str__(self) -> str:
        return stopped_text(self.steps)


def outcome_of(stopped: Stopped | None, lost: Sequence[int] = ()) -> Outcome:
    """Return the outcome of a run that came to its end, or was stopped before. lost: ranks without
    which it went on."""
    if stopped is None:
        return Outcome(status="completed", lost=list(lost))
    return Outcome(status="interrupted", error=str(stopped))


class StopRequest:
    """A signal to any rank, of which all learn after the same step."""

    def __init__(self, group: RunGroup) -> None:
        """Listen for the signal, unless the program does so itself or this is no main thread."""
        self._group = group
        self._is_asked = False
        self._due = self._asked_step = 0
        self._asked_at = time.perf_counter()
        handler = signal.getsignal(STOP_SIGNAL)
        is_free = handler is signal.SIG_DFL or isinstance(
            getattr(handler, "__self__", None), StopRequest
        )  # that of an earlier run of the program
        if is_free and threading.current_thread() is threading.main_thread():
            signal.signal(STOP_SIGNAL, self._note)

    def agree(self, step: int, *, now: bool = False) -> bool:
        """Return whether a rank was asked to stop. Collective at steps that the ranks know of.

        step: number of updates made, the same on all ranks. now: whether to ask at this step in any
        case; else about once a second.
        """
        if step < self._due and not now:
            return False
        since, self._asked_at = self._asked_at, time.perf_counter()
        steps, self._asked_step = max(1, step - self._asked_step), step
        pace_s = (self._asked_at - since) / steps
        wait = min(MAX_STEPS, max(1, int(ASK_INTERVAL_S / max(pace_s, 1e-9))))
        own = [float(self._is_asked), float(wait if self._group.rank == 0 else 0)]
        asked, wait_of_all = self._group.sum(own)
        self._due = step + int(wait_of_all)
        return asked > 0

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_asked = True
