"""Injection of faults into this rank, at the times of a schedule that all ranks have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from phalanx.jobs.restarts import RESTART
from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import InjectedEvent
from phalanx.records.files import EventWriter
from phalanx.run.fault_schedule import ScheduledFault, fault_schedule, injections_of

NOTICE_S = 0.1
"""Time before a fault at which it is told and recorded."""
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}


class FaultInjector:
    """Strikes this rank, by a thread of its own, when the schedule says so."""

    def __init__(
        self,
        ranks: RunGroup,
        writer: EventWriter | None,
        *,
        began_at: float,
        num_steps: Callable[[], int],
    ) -> None:
        """Read the faults that the environment asks for.

        ranks: before any was lost. writer: of this rank's records. began_at: `time.perf_counter()`
        that events count from. num_steps: returns the updates made.
        """
        spares, attempt = ranks.num_spares, int(os.environ.get(RESTART, "0"))
        self._injections = injections_of(os.environ)
        self._schedule = fault_schedule(
            self._injections, ranks.size - spares, spares=spares, attempt=attempt
        )
        self._ranks, self._writer = ranks, writer
        self._rank, self._began_at, self._num_steps = ranks.rank, began_at, num_steps
        self._is_cancelled = threading.Event()
        self._lock = threading.Lock()  # guards the decision between a fault and the end
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._first_step_at = 0.0

    def begin(self) -> None:
        """Count time from now on. The ranks call it together, before the first step; later calls do
        nothing, and without faults this one does not, either."""
        if self._injections and self._thread.ident is None:
            self._first_step_at = time.perf_counter()
            self._thread.start()

    def cancel(self) -> None:
        """Strike no more: the training is over."""
        with self._lock:
            self._is_cancelled.set()

    def _run(self) -> None:
        for fault in self._schedule:
            at = self._first_step_at + fault.at_s
            if self._is_cancelled.wait(max(0.0, at - NOTICE_S - time.perf_counter())):
                return
            if self._ranks.num_living < 2:
                return
            if fault.rank == self._rank:
                if not self._ranks.is_waiting:  # it takes its place later than it might
                    self._strike(fault, at)
            elif self._ranks.rank == 0:
                _tell(fault)

    def _strike(self, fault: ScheduledFault, at: float) -> None:
        """Tell and record the fault, and let it happen at its time."""
        _tell(fault)
        with self._lock:
            if self._is_cancelled.is_set():
                return
            self._record(fault, at)
        self._is_cancelled.wait(max(0.0, at - time.perf_counter()))
        with self._lock:
            if self._is_cancelled.is_set():
                return
            if fault.kind == "stop" and fault.pause_s is not None:
                _continue_later(fault.pause_s)
            os.kill(os.getpid(), _SIGNALS[fault.kind])

    def _record(self, fault: ScheduledFault, at: float) -> None:
        """at: of `time.perf_counter()`."""
        if self._writer is not None:
            unix_s = time.time() - time.perf_counter()
            at = max(at, time.perf_counter())
            self._writer.append(
                InjectedEvent(
                    at_s=at - self._began_at,
                    time_s=unix_s + at,
                    kind=fault.kind,
                    rank=fault.rank,
                    step=self._num_steps(),
                    pause_s=fault.pause_s,
                )
            )


def _tell(fault: ScheduledFault) -> None:
    """Print the fault before it happens."""
    what = {"kill": "SIGKILL", "stop": "SIGSTOP", "terminate": "SIGTERM"}[fault.kind]
    if fault.kind == "stop":
        pause_s = fault.pause_s
        what += ", for good" if pause_s is None else f", for {pause_s:g} s"
    line = f"phalanx: injected fault: rank {fault.rank}: {what}, {fault.at_s:.1f} s after its start"
    print(line, file=sys.stderr, flush=True)


def _continue_later(pause_s: float) -> None:
    """Have another process continue this one, which cannot do so itself."""
    command = f"sleep {pause_s}; kill -CONT {os.getpid()}"
    subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
