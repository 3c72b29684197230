"""Restarts of a job's ranks after a loss, by the process that has started them.

That process is outside of the MPI launcher, and outlives ranks, nodes and launcher. Each start of
the ranks has a separate folder, since an interrupted one may still write.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from phalanx.errors import (
    JobLostError,
    RunFailedError,
    RunStoppedError,
    UserError,
    print_note,
    was_interrupted,
)
from phalanx.jobs.allocation import HOSTS, Allocation, allocation
from phalanx.jobs.detect import detect
from phalanx.jobs.elsewhere import end_elsewhere
from phalanx.jobs.memory_copies import OPTION, CopiesOnNodes, copies_on, forget_copies
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.jobs.record import close_running, end_record
from phalanx.records.files import read_run, record_file, write_record
from phalanx.records.owner import this_process
from phalanx.records.progress import newest_saved, position_of, steps_made
from phalanx.records.schema import Outcome, Restart, Run

RESTART = "PHALANX_RESTART"
"""Number of the restart, for restarted ranks, which resume from their checkpoints."""
RESTARTS_LOG = "restarts.log"
WINDOW_S = 3600.0
"""Time window of the limit of restarts."""
MAX_FRUITLESS = 3
"""Starts in a row without a new step, after which there is no other."""

Result_co = TypeVar("Result_co", covariant=True)
Result = TypeVar("Result")


def check_restarts(limit: int, copy_every_s: float | None, environ: Mapping[str, str]) -> None:
    """Raises: UserError for a number of restarts below 0, or in a process that a launcher has
    started, with which the ranks end; for copies in memory at no time, or that nothing reads."""
    if limit < 0:
        raise UserError(f"--restarts {limit}: the number of restarts per hour must be 0 or more")
    launched = detect(environ)
    if limit and launched is not None:
        raise UserError(
            f"--restarts {limit}: {launched.launcher} started this process, so that nothing "
            "outlives it to restart the run: leave that launcher out, and Phalanx starts the ranks"
        )
    if copy_every_s is not None and not copy_every_s > 0:
        raise UserError(f"{OPTION} {copy_every_s:g} must be positive")
    if copy_every_s is not None and not limit:
        raise UserError(f"{OPTION} {copy_every_s:g} is for restarts: also give --restarts N")


def is_restart() -> bool:
    """Return whether this rank was started again after a loss."""
    return RESTART in os.environ


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a job's ranks."""

    number: int
    """Number of restarts until then."""
    folder: Path
    """Folder of its records and logs."""
    ranks: int
    silent: Collection[str] = ()
    """Hosts that do not answer, with all that they alone hold."""


class Resumption(NamedTuple):
    """Starting point of the ranks of a restart."""

    checkpoint: str | None
    """Checkpoint on the disk, or in the memory of a node."""
    text: str
    """Words on that for the user."""
    changed: str = ""
    """Words on what another number of ranks changes."""
    host: str | None = None
    """Host whose memory has that checkpoint; None: it is on the disk."""


class Restartable(Protocol[Result_co]):
    """A job whose ranks can be started more than once."""

    def start(self, attempt: Attempt) -> Result_co:
        """Run the ranks to their end.

        Raises: JobLostError for a loss, RunFailedError for a failure of the program's own.
        """

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Decide where the ranks of a restart resume; `former` are those before it.

        Raises: UserError where they cannot.
        """


def supervise(
    job: Restartable[Result],
    folder: Path,
    ranks: int,
    limit: int,
    *,
    copy_every_s: float | None = None,
) -> Result:
    """Run a job to its end, and start its ranks again after losses.

    folder: of the run; restarts have theirs in it. ranks: wanted; fewer where hosts are lost.
    limit: restarts within an hour; 0: none. copy_every_s: seconds between two copies of the
    state in the memory of the nodes; None: there are none.
    Raises: what `job.start` raises, when nothing is started again: the reason is on stderr.
    """
    first = Attempt(number=0, folder=folder, ranks=ranks)
    forget_copies()
    try:
        if not limit:
            return job.start(first)
        nodes = allocation(os.environ)
        with _own_token() as token, copies_on(nodes, token, copy_every_s) as copies:
            return _Supervisor(first, limit, token, nodes, copies).run(job)
    except JobLostError as error:
        starts = (folder, *folder.glob("restart-*"))
        error.has_saved = any(newest_saved(start) is not None for start in starts)
        raise


def why_no_restart(
    *,
    is_loss: bool,
    has_new_step: bool,
    num_fruitless: int,
    times: Sequence[float],
    now: float,
    limit: int,
) -> str | None:
    """Return why ranks are not started again; None where they are.

    is_loss: they ended by no failure of the program. num_fruitless: starts in a row, this one
    included, that made no new step. times: of the restarts so far, and `now`, in seconds.
    """
    if not is_loss and not has_new_step:
        return "the program itself failed before a new step, and would fail again"
    if num_fruitless >= MAX_FRUITLESS:
        return f"{num_fruitless} consecutive starts completed no new step"
    if sum(now - at < WINDOW_S for at in times) >= limit:
        return f"--restarts {limit}: that many were made within the last hour"
    return None


def left_of(nodes: Allocation, silent: Mapping[str, str], ranks: int) -> tuple[Allocation, int]:
    """Return the hosts that answer, and on how many ranks a job of `ranks` resumes there."""
    answering = replace(nodes, nodes=tuple(n for n in nodes.nodes if n.name not in silent))
    return answering, min(ranks, sum(answering.slots)) if silent else ranks


class _Supervisor:
    """Starts of one run's ranks, one after the other."""

    def __init__(
        self,
        first: Attempt,
        limit: int,
        token: str,
        nodes: Allocation,
        copies: CopiesOnNodes | None,
    ) -> None:
        self._attempt, self._first, self._limit, self._token = first, first, limit, token
        self._nodes, self._copies, self._named = nodes, copies, os.environ.get(HOSTS)
        self._restarts: list[Restart] = []
        self._times: list[float] = []
        self._silent: Mapping[str, str] = {}
        self._steps = 0
        self._num_fruitless = 0

    def run(self, job: Restartable[Result]) -> Result:
        """Start the ranks until they complete, or no attempt remains."""
        try:
            while True:
                try:
                    result = job.start(self._attempt)
                except RunFailedError as error:
                    self._attempt = self._next(job, error)
                else:
                    self._close(Outcome(status="completed"))
                    return result
        except BaseException as error:
            is_asked = was_interrupted(error) or isinstance(error, RunStoppedError | SystemExit)
            text = str(error).partition("\n")[0]
            self._close(Outcome(status="interrupted" if is_asked else "failed", error=text or None))
            raise

    def _next(self, job: Restartable[Result], error: RunFailedError) -> Attempt:
        """Return the next start of the ranks. Raises: `error` where there is none."""
        lost_at, former = time.time(), self._attempt
        text = str(error).partition("\n")[0]  # used if no rank could close its record
        close_running(former.folder, Run, Outcome(status="failed", error=text))
        steps = steps_made(former.folder)
        has_new_step = steps is not None and steps > self._steps
        self._steps = max(self._steps, steps or 0)
        self._num_fruitless = 0 if has_new_step else self._num_fruitless + 1
        before, self._silent = self._silent, end_elsewhere(self._nodes, self._token)
        refusal = why_no_restart(
            is_loss=isinstance(error, JobLostError) or bool(self._silent.keys() - before.keys()),
            has_new_step=has_new_step,
            num_fruitless=self._num_fruitless,
            times=self._times,
            now=time.monotonic(),
            limit=self._limit,
        )
        left, ranks = left_of(self._nodes, self._silent, self._first.ranks)
        if refusal is None and self._nodes.nodes and not left.nodes:
            refusal = "no host answers"
        if refusal is not None:
            self._tell(f"not restarted: {refusal}")
            raise error
        number = len(self._restarts) + 1
        folder = self._first.folder / f"restart-{number}"
        attempt = Attempt(number=number, folder=folder, ranks=ranks, silent=self._silent.keys())
        self._use(left)
        try:
            resumption = self._resumption(job, attempt, former)
        except UserError as obstacle:
            self._tell(f"not restarted: {obstacle}")
            raise error from obstacle
        self._tell(str(error))
        for name, why in self._silent.items():
            self._tell(f"{name} does not answer and is left out: {why}")
        where = allocation(os.environ).describe(ranks)
        text = "; ".join(filter(None, [resumption.text, resumption.changed]))
        self._tell(f"restart {number} (at most {self._limit} per hour): {where}, {text}")
        self._times.append(time.monotonic())
        restart = Restart(
            folder=folder.name,
            lost_at=_iso(lost_at),
            restarted_at=_iso(time.time()),
            reason=str(error),
            steps=steps,
            ranks=ranks,
            hosts=left.hosts().split(",") if left.nodes else [],
            silent=dict(self._silent),
            checkpoint=resumption.checkpoint,
            memory_of=resumption.host,
        )
        self._restarts.append(restart)
        self._write(Outcome(status="running"), former.folder)
        return attempt

    def _resumption(
        self, job: Restartable[Result], attempt: Attempt, former: Attempt
    ) -> Resumption:
        """Decide where the ranks resume: from the newest of the copies in memory and the
        checkpoints on the disk. Raises: UserError if they cannot."""
        found = job.prepare(attempt, former)
        copy, lines = self._copies.find(self._silent) if self._copies else (None, [])
        for line in lines:
            self._tell(line)
        on_disk = (-1, 0) if found.checkpoint is None else position_of(Path(found.checkpoint).name)
        if copy is None or copy.position <= on_disk:
            return found
        text = copy.describe(found.checkpoint)
        return Resumption(str(copy.place), text, found.changed, copy.host)

    def _use(self, nodes: Allocation) -> None:
        """Have the next ranks started on these nodes alone."""
        if self._silent:
            os.environ[HOSTS] = nodes.hosts()
        elif self._named is None:
            os.environ.pop(HOSTS, None)
        else:
            os.environ[HOSTS] = self._named

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError), (self._first.folder / RESTARTS_LOG).open("a") as log:
            log.write(f"{_iso(time.time())} {text}\n")
        print_note(text)

    def _close(self, outcome: Outcome) -> None:
        """Write the outcome of the last start as that of the run. outcome: where it has none."""
        if not self._restarts:
            return
        folder = self._attempt.folder
        close_running(folder, Run, outcome)
        with contextlib.suppress(OSError, ValueError):
            outcome = read_run(folder).outcome
        self._write(outcome, folder)
        with contextlib.suppress(OSError, ValueError, RunFailedError):
            end_record(self._first.folder, Run, outcome)

    def _write(self, outcome: Outcome, folder: Path) -> None:
        """Write the restarts into the run's record, which begins as that in `folder` where its
        first ranks have begun none."""
        own = self._first.folder
        with contextlib.suppress(OSError, ValueError):
            source = own if record_file(own, Run).exists() else folder
            if not record_file(source, Run).exists():
                return
            run = msgspec.structs.replace(
                read_run(source),
                run=own.name,
                restarts=self._restarts,
                outcome=outcome,
                ended_at=None,
                owner=this_process(),
            )
            write_record(own, run)


@contextlib.contextmanager
def _own_token() -> Iterator[str]:
    """Put a word into the environment of all that this process starts, by which it is found."""
    outer, token = os.environ.get(JOB_VARIABLE), f"{os.getpid()}.{secrets.token_hex(8)}"
    os.environ[JOB_VARIABLE] = f"{token}/{outer}" if outer else token
    try:
        yield token
    finally:
        os.environ.pop(JOB_VARIABLE)
        if outer:
            os.environ[JOB_VARIABLE] = outer


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
