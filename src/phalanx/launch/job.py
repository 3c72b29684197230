"""A job: the processes of one run, started together, watched, and ended without a trace."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from phalanx.launch import leftovers, orphan
from phalanx.launch.command import Command
from phalanx.launch.processes import is_daemon, kill, processes_with

DEFAULT_GRACE_S = 5.0
_LAUNCHER_GRACE_S = 1.5  # for a launcher to notice that its ranks are gone and to tidy up
_KILLED_WITHIN_S = 10.0
_POLL_EVERY_S = 0.02
_MAX_LOOKS = 10  # at a file in shared memory whose owner is not among our processes

Step = Literal["ask", "kill ranks", "kill all"]


def ending_step(elapsed_s: float, grace_s: float) -> Step:
    """Return the next step against processes that were asked to end `elapsed_s` ago.

    Launchers come last: one that is killed leaves its files behind, one that sees its ranks die
    takes them away.
    """
    if elapsed_s < grace_s:
        return "ask"
    return "kill ranks" if elapsed_s < grace_s + _LAUNCHER_GRACE_S else "kill all"


class Job:
    """The running processes. Use it in a `with` block: leaving the block ends them all.

    Should this process be killed, the kernel ends the job. The kernel watches the *thread* that
    called `start`, which therefore has to live as long as the job.
    """

    def __init__(self, processes: list[subprocess.Popen[bytes]], token: str) -> None:
        self._processes = processes
        self._token = token
        self._exit_code: int | None = None  # of the first process that failed
        self.first_failed: int | None = None
        """Number of the command whose process that was."""
        self._ending_since: float | None = None
        self._grace_s = DEFAULT_GRACE_S
        self._traces: set[Path] = set()
        self._looks_at: Counter[str] = Counter()
        self._finished = False

    @classmethod
    def start(cls, commands: Sequence[Command], log: Path) -> Self:
        """Start one launcher, or a command a rank; what they print is appended to `log`."""
        outer = os.environ.get(orphan.JOB_VARIABLE)
        token = f"{os.getpid()}.{secrets.token_hex(8)}"
        variable = {orphan.JOB_VARIABLE: f"{token}/{outer}" if outer else token}
        job = cls([], token)
        try:
            with log.open("ab") as output:
                for command in commands:
                    job._processes.append(_start(command, variable, output.fileno()))
        except BaseException:
            job.end(grace_s=0.0)
            raise
        return job

    def poll(self) -> int | None:
        """None while any process runs, then the exit code: 0 when all ended well, else that of
        the first that failed, negative for a signal. Call it often: when a rank has failed, this
        is what ends the others. Returns at once."""
        if self._finished:
            return self._exit_code
        codes = [process.poll() for process in self._processes]
        if self._exit_code is None and any(codes):
            self._note_first()
        if all(code is not None for code in codes):
            self._finish()
            return self._exit_code
        if self._exit_code is not None and self._ending_since is None:
            self._ask_to_end(DEFAULT_GRACE_S)
        self._look_for_traces()
        self._press()
        return None

    def _note_first(self) -> None:
        """A process that was ended by a signal died before those that failed for want of it."""
        codes = enumerate([process.poll() for process in self._processes])
        failed = [(code > 0, number, code) for number, code in codes if code]
        _, self.first_failed, self._exit_code = min(failed)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Poll until the job has ended; None when it still runs after `timeout_s`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                return None
            time.sleep(_POLL_EVERY_S)
        return code

    def end(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Ask all processes to end, kill those that have not after `grace_s`, and see to it that
        neither a process nor a file of theirs is left."""
        if not self._finished:
            self._look_for_traces(now=True)
            self._ask_to_end(grace_s)
            self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _ask_to_end(self, grace_s: float) -> None:
        self._grace_s = grace_s
        if self._ending_since is None:
            self._ending_since = time.monotonic()
        for process in self._running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def _press(self) -> None:
        if self._ending_since is None:
            return
        step = ending_step(time.monotonic() - self._ending_since, self._grace_s)
        started = {process.pid for process in self._running()}
        if step == "kill ranks":
            mine = processes_with(self._token)
            kill(pid for pid in mine if pid not in started and not is_daemon(pid))
        elif step == "kill all":
            kill([*started, *processes_with(self._token)])

    def _look_for_traces(self, *, now: bool = False) -> None:
        """Remember the files of the ranks while they live: dead, they no longer tell.

        Asking all processes takes milliseconds, listing a folder microseconds: ask only while
        there are names whose owner is unknown, and not for ever.
        """
        unknown = [name for name in leftovers.segment_names() if self._looks_at[name] < _MAX_LOOKS]
        if unknown or now:
            launchers = {process.pid for process in self._processes}
            self._traces |= leftovers.traces(processes_with(self._token), launchers)
            self._looks_at.update(unknown)
            self._looks_at.update({path.name: _MAX_LOOKS for path in self._traces})

    def _finish(self) -> None:
        """All that we started has ended: end what that started in its turn."""
        until = time.monotonic() + _KILLED_WITHIN_S
        while survivors := processes_with(self._token):
            self._look_for_traces(now=True)
            kill(survivors)
            if time.monotonic() > until:
                raise RuntimeError(f"processes {survivors} of a job cannot be killed")
            time.sleep(_POLL_EVERY_S)
        leftovers.remove(self._traces)
        launchers = [process.pid for process in self._processes]
        leftovers.remove(leftovers.session_folders(launchers, os.environ))
        self._finished = True
        self._exit_code = self._exit_code or 0

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]


def _start(command: Command, variable: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in the terminal reaches us alone; by way of
    `orphan`, so that it ends with us. (Not `preexec_fn`: unsafe with threads, slow with torch.)"""
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
