"""A job: the processes of one run, started, monitored and ended together, without leftovers."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

from phalanx.errors import RunFailedError, StopTimeoutError
from phalanx.jobs import leftovers, orphan
from phalanx.jobs.command import Command
from phalanx.jobs.leftovers import TRACKERS_END_S, is_daemon, kill, processes_with
from phalanx.jobs.temporary import job_folder

DEFAULT_GRACE_S = 5.0
_LAUNCHER_GRACE_S = 1.5  # lets a launcher notice that its ranks have ended, and clean up
_KILLED_WITHIN_S = 10.0
_POLL_EVERY_S = 0.02
PASSED_ON = signal.SIGUSR1
REPEATED_S = 0.5
"""A second SIGTERM that comes so long after the first is another one."""
_MAX_CHECKS = 10  # checks of a shared-memory file whose owner is not our process

Step = Literal["ask", "kill ranks", "kill all"]


def termination_step(elapsed_s: float, grace_s: float) -> Step:
    """Return the next step against processes that were asked to end `elapsed_s` ago.

    Launchers come last: one that is killed leaves its files, one whose ranks end removes them.
    """
    if elapsed_s < grace_s:
        return "ask"
    return "kill ranks" if elapsed_s < grace_s + _LAUNCHER_GRACE_S else "kill all"


class Job:
    """Running processes; leaving the `with` block ends them all.

    Should this process be killed, the kernel ends the job. The kernel watches the *thread* that
    called `start`, which therefore has to live as long as the job.
    """

    def __init__(self, processes: list[subprocess.Popen[bytes]], token: str) -> None:
        self._processes = processes
        self._end_signals: dict[int, signal.Signals] = {}
        self.token = token
        """Word in the environment of all its processes, on every node."""
        self._exit_code: int | None = None  # exit code of the first failed process
        self._ending_since: float | None = None
        self._grace_s = DEFAULT_GRACE_S
        self._leftovers: set[Path] = set()
        self._folders = contextlib.ExitStack()
        self._num_checks: Counter[str] = Counter()
        self._finished = False
        self._former: dict[int, Any] = {}
        self._listens: Callable[[], bool] = lambda: False
        self._asked_at: float | None = None
        self._stop_within_s = math.inf
        self._has_launcher = self._has_repeated = True

    @classmethod
    def start(cls, commands: Sequence[Command], log: Path, *, output: int | None = None) -> Self:
        """Start one launcher, or one command per rank.

        Their output is appended to `log`, or goes to the descriptor `output`.
        """
        outer = os.environ.get(orphan.JOB_VARIABLE)
        token = f"{os.getpid()}.{secrets.token_hex(8)}"
        variable = {orphan.JOB_VARIABLE: f"{token}/{outer}" if outer else token}
        job = cls([], token)
        variable |= job._sessions(commands)
        try:
            with log.open("ab") as file:
                for command in commands:
                    target = file.fileno() if output is None else output
                    job._processes.append(process := _start(command, variable, target))
                    job._end_signals[process.pid] = command.end_signal
        except BaseException:
            job.end(grace_s=0.0)
            raise
        return job

    def _sessions(self, commands: Sequence[Command]) -> dict[str, str]:
        """Make a folder for the launchers' own files until the job's end, and return the variables
        that name it; none where the user names one, and where no folder can be made."""
        names = {command.session_variable for command in commands} - {None, *os.environ}
        with contextlib.suppress(OSError):  # the launcher names the folder that it cannot make
            return {name: str(self._folders.enter_context(job_folder())) for name in names if name}
        return {}

    def poll(self) -> int | None:
        """Return None while any process runs, then the exit code, without blocking.

        The code is 0 if all succeeded, else that of the first failure, negative for a signal. Call
        it often: it ends the remaining ranks after a failure.
        """
        if self._finished:
            return self._exit_code
        codes = [process.poll() for process in self._processes]
        failed = [code for code in codes if code]
        if self._exit_code is None and failed:
            self._exit_code = min(failed)  # one that died has done so before the others failed
        if all(code is not None for code in codes):
            self._finish()
            return self._exit_code
        self._check_grace()
        if self._exit_code is not None and self._ending_since is None:
            self._terminate(DEFAULT_GRACE_S)
        self._record_leftovers()
        self._escalate()
        return None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Poll until the job has ended; None when it still runs after `timeout_s`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                return None
            time.sleep(_POLL_EVERY_S)
        return code

    def stopped(self) -> tuple[int, ...]:
        """Return the ids of the processes of its commands that are stopped (SIGSTOP)."""
        return tuple(each.pid for each in self._processes if leftovers.is_stopped(each.pid))

    def end(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Terminate all processes, kill those left after `grace_s`, and remove their files."""
        if not self._finished:
            self._record_leftovers(now=True)
            self._terminate(grace_s)
            self.wait()

    def __enter__(self) -> Self:
        """Forward SIGUSR1 to the processes from now on: they may be asked to save and stop."""
        if threading.current_thread() is threading.main_thread():
            self._former[PASSED_ON] = signal.signal(PASSED_ON, lambda *_: self._pass_on())
        return self

    def stop_on_termination(
        self, listens: Callable[[], bool], grace_s: float, *, has_launcher: bool
    ) -> None:
        """Make the first SIGTERM ask the ranks to save and stop, if they listen. Not to the
        launcher: that of Open MPI ends its ranks 0.2 s after its own SIGTERM.

        listens: returns whether the ranks do. grace_s: time for them to stop; then `poll` raises
        StopTimeoutError. has_launcher: the job is a launcher and its ranks, else every process is a
        rank. A second SIGTERM has the effect that the first has without this.
        """
        self._has_launcher, self._has_repeated = has_launcher, False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            self._listens, self._stop_within_s = listens, grace_s
            self._former[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._ask_to_stop)

    def __exit__(self, *_: object) -> None:
        self.end()
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        now, former = time.monotonic(), self._former[signal.SIGTERM]
        if self._asked_at is None and self._listens():
            self._asked_at = now
            self._pass_on()
        elif self._asked_at is not None and now < self._asked_at + REPEATED_S:
            return  # sent to the process and its group
        elif callable(former):
            former(number, frame)
        else:
            signal.signal(number, former)
            os.kill(os.getpid(), number)

    def cut_short(self, error: RunFailedError) -> StopTimeoutError | None:
        """Return the error of a job that was asked to save and stop, and lost its ranks before they
        had; None for one that was not asked. error: how it lost them."""
        if self._asked_at is None:
            return None
        why = str(error).partition("\n")[0]
        return StopTimeoutError(
            "asked to stop (SIGTERM), but ended before its ranks saved: existing checkpoints are "
            f"older ({why})"
        )

    def _check_grace(self) -> None:
        asked_at, within_s = self._asked_at, self._stop_within_s
        if asked_at is not None and time.monotonic() > asked_at + within_s:
            self._stop_within_s = math.inf  # told once; ending them takes more polls
            raise StopTimeoutError(
                f"asked to stop, but did not stop within the grace period of {within_s:g} s "
                "(--grace-s): all ranks were killed; existing checkpoints are older"
            )

    def _pass_on(self) -> None:
        for process in self._running():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(PASSED_ON)

    def _terminate(self, grace_s: float) -> None:
        self._grace_s = grace_s
        if self._ending_since is None:
            self._ending_since = time.monotonic()
        for process in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, self._end_signals[process.pid])

    def _escalate(self) -> None:
        if self._ending_since is None:
            return
        elapsed_s = time.monotonic() - self._ending_since
        step = termination_step(elapsed_s, self._grace_s)
        started = {process.pid for process in self._running()}
        if elapsed_s > 2 * REPEATED_S and not self._has_repeated:
            self._repeat(started)
        if step == "kill ranks":
            mine = processes_with(self.token)
            kill(pid for pid in mine if pid not in started and not is_daemon(pid))
        elif step == "kill all":
            kill([*started, *processes_with(self.token)])

    def _repeat(self, started: set[int]) -> None:
        """Send SIGTERM once more to ranks that took the first as a request to save and stop. Not to
        a launcher, which would leave its files."""
        self._has_repeated = True
        launchers = started if self._has_launcher else set()
        for pid in processes_with(self.token) if self._listens() else ():
            if pid not in launchers and not is_daemon(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _record_leftovers(self, *, now: bool = False) -> None:
        """Record the files of the ranks while they live; /proc does not list them afterwards.

        Scanning all processes takes milliseconds, listing a folder microseconds: scan only while
        there are files with unknown owners, and at most `_MAX_CHECKS` times per file.
        """
        unknown = [
            name for name in leftovers.segment_names() if self._num_checks[name] < _MAX_CHECKS
        ]
        if unknown or now:
            launchers = {process.pid for process in self._processes}
            self._leftovers |= leftovers.leftovers_of(processes_with(self.token), launchers)
            self._num_checks.update(unknown)
            self._num_checks.update({path.name: _MAX_CHECKS for path in self._leftovers})

    def _finish(self) -> None:
        """Kill the descendants of the ended processes, and remove their files."""
        began = time.monotonic()
        while survivors := processes_with(self.token):
            self._record_leftovers(now=True)
            elapsed_s = time.monotonic() - began
            kill(survivors, trackers=elapsed_s > TRACKERS_END_S)
            if elapsed_s > _KILLED_WITHIN_S:
                raise RuntimeError(f"processes {survivors} of a job cannot be killed")
            time.sleep(_POLL_EVERY_S)
        leftovers.remove(self._leftovers | leftovers.siblings(self._leftovers))
        self._folders.close()
        self._finished = True
        self._exit_code = self._exit_code or 0

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]


def _start(command: Command, variable: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C reaches only us, and through `orphan`, so
    that it ends with us. (Not `preexec_fn`: unsafe with threads, slow with torch.)"""
    bound = [sys.executable, "-I", "-S", orphan.__file__]
    words = [*bound, str(int(command.death_signal)), str(os.getpid()), *command.words]
    return subprocess.Popen(
        words,
        env={**os.environ, **command.environment, **variable},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
