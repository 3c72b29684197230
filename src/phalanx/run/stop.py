"""End of a run before its time, asked for by a signal: a checkpoint first, then all ranks together.

Batch systems send a signal some minutes before they end a job. The checkpoint keeps what was
trained by then, and the same command resumes from it.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from phalanx.checkpoints.memory_copies import MemoryCopies
from phalanx.errors import EXIT_STOPPED
from phalanx.jobs.rank_notes import note_state
from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import stopped_text
from phalanx.records.schema import Outcome

STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
REPEATED_S = 0.5
"""A SIGTERM that arrives this long after the first ends the process. Launchers send one to a
process, and at once to its group."""
ASK_INTERVAL_S = 1.0
"""Time between two questions of the ranks to each other. A question costs one small sum over the
ranks."""
MAX_STEPS = 10_000
"""Most steps between two such questions, however short a step is."""


class Stopped(SystemExit):  # no error: a request
    """The run has ended as it was asked to, and its checkpoint is written."""

    def __init__(self, steps: int) -> None:
        super().__init__(EXIT_STOPPED)
        self.steps = steps
        """Updates made so far."""

    def __str__(self) -> str:
        return stopped_text(self.steps)


def outcome_of(stopped: Stopped | None, lost: Sequence[int] = ()) -> Outcome:
    """Return the outcome of a run that completed or was stopped. lost: ranks without which it
    continued."""
    if stopped is None:
        return Outcome(status="completed", lost=sorted(lost))
    return Outcome(status="interrupted", error=str(stopped))


class StopRequest:
    """Requests between two steps, which all ranks see after the same step: to stop, by a signal to
    any rank, and for a checkpoint, by rank 0's clock.

    The first SIGTERM is noted, as SIGUSR1 is; a second one ends the process as by default.
    """

    def __init__(
        self,
        group: RunGroup,
        *,
        save_every_s: float | None = None,
        is_saving: Callable[[], bool] = lambda: False,
        copies: MemoryCopies | None = None,
    ) -> None:
        """Listen for the signals, but for those that the program handles itself, and where this is
        no main thread.

        save_every_s: time between two checkpoints; None: none are due by time. is_saving: whether
        the last one is still being written. copies: in memory, due beside them.
        """
        self._group, self._original_rank = group, group.rank
        self.is_asked = False
        """True if a signal asked this rank."""
        self._due = self._asked_step = 0
        self._asked_at = self._saved_at = time.perf_counter()
        self._save_every_s, self._is_saving, self._copies = save_every_s, is_saving, copies
        periods = (save_every_s, copies.every_s if copies else None)
        self._interval_s = min(ASK_INTERVAL_S, *((every_s or math.inf) / 2 for every_s in periods))
        self._terminated_at: float | None = None
        self._former: dict[signal.Signals, Any] = {}
        self._dumps: list[Path | None] = []
        self._is_announced = self._has_stopped = False
        self.on_terminate: Callable[[], None] | None = None
        """Called on the first SIGTERM, which may be a launcher's: it ends this rank next because
        another one has failed."""
        self.saves = False
        """True if the ranks have agreed on a checkpoint after this step, by time."""
        self.copies_at = 0.0
        """Time, since 1970, of the copy in memory on which they have agreed; 0: none."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.getsignal(number)
                if _is_free(handler):
                    self._former[number] = handler
                    signal.signal(number, self._note)

    def announce(self) -> None:
        """Record that this rank listens, once all ranks do: a stop request goes to all ranks, and
        would end one that did not listen yet."""
        if not self._is_announced and threading.current_thread() is threading.main_thread():
            self._is_announced = True
            if self._former:
                note_state(self._original_rank, "listening")

    def agree(self, step: int, *, now: bool = False) -> bool:
        """Return whether a rank was asked to stop, and set `saves` and `copies_at`. Collective at
        steps that the ranks know of.

        step: number of updates made, the same on all ranks. now: whether to ask at this step in any
        case; else about once a second.
        """
        self.saves, self.copies_at = False, 0.0
        if step < self._due and not now:
            return False
        since, self._asked_at = self._asked_at, time.perf_counter()
        steps, self._asked_step = max(1, step - self._asked_step), step
        pace_s = (self._asked_at - since) / steps
        wait = min(MAX_STEPS, max(1, int(self._interval_s / max(pace_s, 1e-9))))
        own = [0.0, 0.0, 0.0, 0.0]
        if self._group.rank == 0:
            copies_at = time.time() if self._copies and self._copies.is_due() else 0.0
            own[1:] = float(wait), float(self._is_save_due()), copies_at

        def ask() -> Sequence[float]:
            own[0] = float(self.is_asked or self._group.has_stop_request())
            return self._group.sum(own)

        asked, wait_of_all, save_due, self.copies_at = self._group.together(ask)
        self._due = step + int(wait_of_all)
        self.saves, self._has_stopped = save_due > 0, asked > 0
        return self._has_stopped

    def stop_with_others(self) -> None:
        """Note that the other ranks agreed to stop while this rank waited."""
        self._is_announced = self._has_stopped = True

    def restart(self, step: int) -> None:
        """Ask at the next step, as all ranks do from here on. step: updates made."""
        self._due, self._asked_step, self._asked_at = 0, step, time.perf_counter()

    def saved(self) -> None:
        """Count the time to the next checkpoint from now: one was made."""
        self._saved_at = time.perf_counter()

    def close(self, *, has_failed: bool = False) -> None:
        """Listen no longer: signals have the effect that they had before.

        has_failed: what was written down of the last collectives stays.
        """
        for path in () if has_failed else filter(None, self._dumps):
            path.unlink(missing_ok=True)
        self._dumps.clear()
        if self._former and self._is_announced:
            has_stopped = self._has_stopped and not has_failed
            note_state(self._original_rank, "stopped" if has_stopped else "over")
        while self._former:
            number, handler = self._former.popitem()
            if getattr(signal.getsignal(number), "__self__", None) is self:
                signal.signal(number, handler)

    def _is_save_due(self) -> bool:
        every_s = self._save_every_s
        is_due = every_s is not None and time.perf_counter() >= self._saved_at + every_s
        return is_due and not self._is_saving()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if number != signal.SIGTERM:
            return
        now = time.monotonic()
        if self._terminated_at is None:
            self._terminated_at = now
            reason = f"rank {self._original_rank} was asked to end (SIGTERM)"
            self._dumps = [recorder.write(reason) for recorder in self._group.recorders()]
            if self.on_terminate is not None:
                self.on_terminate()
        elif now > self._terminated_at + REPEATED_S:
            self._end(number, frame)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal did before."""
        handler = self._former.get(signal.SIGTERM)
        self.close(has_failed=True)
        if callable(handler):
            handler(number, frame)
        else:
            os.kill(os.getpid(), number)


def _is_free(handler: Any) -> bool:
    """Return whether a signal has its default effect, or a handler of Phalanx's, such as that of an
    earlier run of the program."""
    if handler is signal.SIG_DFL:
        return True
    module = str(getattr(handler, "__module__", ""))
    return callable(handler) and module.partition(".")[0] == "phalanx"
