"""A thread of a rank that reports how long the rank has waited in one collective."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from phalanx.comm import failure_detector
from phalanx.comm.faults import ranks_in
from phalanx.comm.mpi import mpi
from phalanx.comm.world import World
from phalanx.jobs.state_clock import StateClock
from phalanx.records.wait_reports import WAIT_REPORTS, WaitReport, write_report

POLL_S = 0.25
REPORT_S = 0.5


def current_wait(world: World, thread: int) -> Hashable | None:
    """Return what tells the collective in which this rank waits from any other; None where it
    waits in none. thread: that makes the collectives; called from any other."""
    number = failure_detector.current_wait(thread)
    states = [group.call_state() for group in world.recorder.registered()]
    is_waiting = number is not None or any(is_in_call for _, is_in_call in states)
    return (number, *states) if is_waiting else None


def launched_ranks(communicator: Any) -> list[int]:
    """Return the numbers by which the launcher knows its ranks. Not collective."""
    return ranks_in(mpi().COMM_WORLD.Get_group(), communicator.Get_group())


class WaitReporter:
    """Reports of this rank, until it is closed; nothing where nobody has asked for them."""

    def __init__(self, world: World, wait: Callable[[], Hashable | None]) -> None:
        """world: fault-tolerant. wait: as `current_wait`, of the ranks left."""
        folder = os.environ.get(WAIT_REPORTS)
        self._folder = Path(folder) if folder else None
        self._wait, self._number = wait, 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wait reporter", daemon=True)
        if self._folder is not None:
            ranks = launched_ranks(world.rendezvous)
            self._rank, self._group = ranks[world.original_rank], ranks[0]
            self._report(0.0)
            self._thread.start()

    def close(self) -> None:
        """Say that nobody needs to wait for this rank any more."""
        self._closed.set()
        if self._folder is not None:
            self._thread.join()
            self._report(0.0, is_over=True)

    def _run(self) -> None:
        clock, told_s, told_at = StateClock(), 0.0, time.monotonic()
        while not self._closed.wait(POLL_S):
            now = time.monotonic()
            waited_s = clock.see(self._wait(), now)
            if (waited_s and now > told_at + REPORT_S) or (told_s and not waited_s):
                self._report(waited_s)
                told_s, told_at = waited_s, now

    def _report(self, waited_s: float, *, is_over: bool = False) -> None:
        assert self._folder is not None, "asked for"
        self._number += 1
        report = WaitReport(
            rank=self._rank,
            group=self._group,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            number=self._number,
            waited_s=waited_s,
            is_over=is_over,
        )
        with contextlib.suppress(OSError):  # a full disk must not end a run
            write_report(self._folder, report)
