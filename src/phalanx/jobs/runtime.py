"""Run the ranks of a job: start them, follow the records of rank 0, judge how they ended.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens to
the ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from phalanx.errors import JobLostError
from phalanx.jobs.collector import RELAY_WORDS, Collector, marked
from phalanx.jobs.early_death import EarlyDeath, WhyLost, no_reason
from phalanx.jobs.first_rank import FirstRankTail
from phalanx.jobs.incomplete import read_incomplete
from phalanx.jobs.launcher_log import LAUNCHER_LOG, has_not_started
from phalanx.jobs.outcome import JobExit, RankNodes, determine_outcome, error_of
from phalanx.jobs.patience import Patience
from phalanx.launch import rank_log
from phalanx.launch.allocation import THIS_MACHINE, Allocation, allocation
from phalanx.launch.binding import thread_variables
from phalanx.launch.command import Command, local_commands, memory_variables, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.elsewhere import end_elsewhere
from phalanx.launch.installation import MpiInstallation
from phalanx.launch.job import Job
from phalanx.launch.rank_log import read_failures
from phalanx.launch.state_clock import StateClock
from phalanx.launch.stray_daemon import FROZEN_S
from phalanx.records.events import Event
from phalanx.records.schema import Outcome
from phalanx.records.wait_reports import WAIT_REPORTS, remove_reports

POLL_INTERVAL_S = 0.1
START_S = 600.0
"""Minimum time for ranks to start: imports alone may take minutes on a slow network file system."""
SLOW_START_S = 20.0
"""After which a line says that no rank has begun."""
FAILED_S = 4.0
"""For a launcher to end by itself after a rank has failed."""
LOST_GRACE_S = 1.0
"""For the processes of a launcher that does not."""


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """Ranks to start, and what their records must hold in the end."""

    folder: Path  # of the records of the ranks
    ranks: int
    program: Sequence[str]  # command line of each rank
    mpi: MpiInstallation | None  # None: one process per rank on this node
    threads: int | None  # of each rank; None: by the cores of its node, which is not this one
    silent_s: float  # timeout without records of rank 0, once the ranks have started
    environment: Mapping[str, str] = field(default_factory=dict)  # added to that of the ranks
    survive: bool = False  # the others go on when a rank dies
    patience_s: float | None = None  # a rank that keeps others waiting for longer is killed
    check: Callable[[], None] = lambda: None  # called while they run; what it raises ends them
    grace_s: float | None = None
    """For the ranks to save and stop after SIGTERM to this process; None: it ends them."""

    @property
    def nodes(self) -> Allocation:
        """The nodes of the ranks: this machine, or also others."""
        return allocation(os.environ) if self.mpi else THIS_MACHINE

    def commands(self) -> list[Command]:
        """Return the processes to start: one launcher for MPI, else one process per rank."""
        if self.mpi:
            program = [*self._noting_ends(), *self.program]
            if self.nodes.has_others:
                names = {str(self.folder): str(self.folder.absolute())}
                program = [*RELAY_WORDS, *(names.get(word, word) for word in program)]
            cores = usable_cores()
            job = mpi_job(
                self.mpi,
                self.ranks,
                program,
                cores=cores,
                environ=os.environ,
                survive=self.survive,
            )
            started = [job]
        else:
            started = local_commands(self.ranks, self.program, environ=os.environ)
        added = {
            **self.environment,
            **thread_variables(self.threads, os.environ),
            **memory_variables(os.environ),
        }
        if self.patience_s is not None:
            added[WAIT_REPORTS] = str(self.folder.absolute())
        return [replace(each, environment={**each.environment, **added}) for each in started]

    def _noting_ends(self) -> list[str]:
        """Return the words before a rank's program that have its end noted in the folder, where the
        launcher tells nothing of it."""
        if not self.survive:
            return []
        return [sys.executable, "-P", "-m", rank_log.__name__, str(self.folder), rank_log.SHOWN]


def run_ranks(job: RankJob, show: Callable[[list[Event]], None]) -> Outcome:
    """Start the ranks and wait for them; none of their processes is left when this returns.

    show: draws the progress from new events of rank 0, or of the first that is left; called often,
    also without any.
    """
    tail = FirstRankTail(job.folder, job.ranks)

    def update() -> bool:
        job.check()
        events = list(tail.read_new())
        show(events)
        return bool(events) or tail.was_touched()

    must_end = job.survive or job.nodes.has_others
    ending, processes, collector = follow(
        job.commands(),
        job.folder,
        job.nodes,
        update,
        has_launcher=job.mpi is not None,
        files=list(job.folder.glob("*.json")),
        silent_s=job.silent_s,
        has_failed=partial(has_failure, job.folder, survive=job.survive) if must_end else None,
        patience_s=job.patience_s,
        grace_s=job.grace_s,
        why_lost=EarlyDeath(job.folder, job.ranks).why if job.survive else no_reason,
    )
    if job.survive:
        ending = ended_by_rank(job.folder, ending)
    outcome = determine_outcome(job.folder, job.ranks, ending)
    if outcome.status == "completed":
        return read_incomplete(outcome, job.folder, job.ranks)
    if collector is not None:
        ending = ending._replace(nodes=rank_nodes(job, collector, processes))
        outcome = determine_outcome(job.folder, job.ranks, ending)
    error = error_of(job.folder, outcome)
    if isinstance(error, JobLostError) and (stopped := processes.cut_short(error)) is not None:
        raise stopped
    return outcome


def follow(
    commands: Sequence[Command],
    folder: Path,
    nodes: Allocation,
    update: Callable[[], bool],
    *,
    has_launcher: bool,
    files: Sequence[Path] = (),
    silent_s: float = math.inf,
    has_failed: Callable[[], bool] | None = None,
    patience_s: float | None = None,
    grace_s: float | None = None,
    listens: Callable[[], bool] = lambda: True,
    why_lost: WhyLost = no_reason,
) -> tuple[JobExit, Job, Collector | None]:
    """Start the processes of a job and wait for them, once more where the launcher has ended by a
    fault of its own before any rank began.

    folder: of records and logs. update, has_launcher, silent_s, has_failed, why_lost: as of
    `watch`.
    files: that ranks read in `folder`. patience_s: a rank that keeps others waiting for longer is
    killed. grace_s: for ranks that listen to save and stop after SIGTERM to this process; None: it
    ends them.
    Returns: how they ended, the job that has, and what ranks on other nodes said.
    """
    slow_start = SlowStart(folder, nodes)

    def updated() -> bool:
        slow_start.tell()
        return update()

    for is_second in (False, True):
        with started(commands, folder, nodes, files) as (job, collector):
            if grace_s is not None:
                job.stop_on_termination(listens, grace_s, has_launcher=has_launcher)
            patience = Patience(folder, patience_s, job.token, nodes) if patience_s else None
            ending = watch(
                job,
                updated,
                silent_s=silent_s,
                has_launcher=has_launcher,
                has_failed=has_failed,
                patience=patience,
                why_lost=why_lost,
            )
            if ending.exit_code is None and (has_failed is not None or ending.reason):
                job.end(LOST_GRACE_S)
        if is_second or not has_not_started(folder, ending.exit_code):
            break
        print(
            "phalanx: Open MPI's launcher failed before any rank began, and is started once more; "
            f"its words: {folder / LAUNCHER_LOG}",
            file=sys.stderr,
        )
    remove_reports(folder)
    return ending, job, collector


class SlowStart:
    """A line on what a job waits for whose ranks do not begin, on other nodes."""

    def __init__(self, folder: Path, nodes: Allocation) -> None:
        self._folder, self._nodes = folder, nodes
        self._tells_at = time.monotonic() + SLOW_START_S if nodes.has_others else math.inf

    def tell(self) -> None:
        if time.monotonic() < self._tells_at:
            return
        self._tells_at = math.inf
        if any(self._folder.glob("rank-*")):
            return
        hosts = ",".join(node.name for node in self._nodes.nodes)
        print(
            f"phalanx: no rank has begun for {SLOW_START_S:g} s: waiting for nodes, whose logins "
            "may be slow or whose ports a firewall may close; it is examined by phalanx doctor "
            f"--hosts {hosts}",
            file=sys.stderr,
            flush=True,
        )


def has_failure(folder: Path, *, survive: bool) -> bool:
    """Return whether a rank has failed, so that all must end. survive: those that died do not
    count."""
    if (folder / "error.json").exists():
        return True
    return survive and any(failure.exit_code >= 0 for failure in read_failures(folder))


def ended_by_rank(folder: Path, ending: JobExit) -> JobExit:
    """Return the exit of a job with ULFM, whose launcher reports success whatever happens: that of
    the first rank that failed or, where none has, that died first."""
    failures = read_failures(folder)
    if (ending.exit_code or 0) < 0 or ending.silent_s or not failures:
        return ending
    first = next((failure for failure in failures if failure.exit_code >= 0), failures[0])
    return ending._replace(exit_code=first.exit_code, rank=first.rank)


def rank_nodes(job: RankJob, collector: Collector, processes: Job) -> RankNodes:
    """End what a failed job has left on other nodes, and return what is known of its ranks."""
    placed = zip(job.nodes.nodes, job.nodes.placed(job.ranks), strict=True)
    names = [node.name for node, here in placed for _ in range(here)]
    return RankNodes(
        hosts=dict(enumerate(names)),
        ends={rank: end.exit_code for rank, end in collector.ends.items()},
        lost=end_elsewhere(job.nodes, processes.token),
    )


@contextlib.contextmanager
def started(
    commands: Sequence[Command], folder: Path, nodes: Allocation, files: Sequence[Path]
) -> Iterator[tuple[Job, Collector | None]]:
    """Start the processes of a job and end them with the block; all records are then in `folder`.

    files: that ranks read there. The collector: None where all ranks are on this machine.
    """
    if not nodes.has_others:
        with Job.start(commands, folder / LAUNCHER_LOG) as local:
            yield local, None
        return
    collector = Collector(folder)
    job: Job | None = None
    try:
        with marked(folder, files, collector.key) as variables:
            there = [replace(c, environment={**c.environment, **variables}) for c in commands]
            with Job.start(there, folder / LAUNCHER_LOG, output=collector.output) as running:
                job = running
                collector.release()
                yield job, collector
    except BaseException:
        if job is not None:
            end_elsewhere(nodes, job.token)
        raise
    finally:
        collector.wait()


def watch(
    job: Job,
    update: Callable[[], bool],
    *,
    silent_s: float,
    has_launcher: bool,
    has_failed: Callable[[], bool] | None = None,
    patience: Patience | None = None,
    why_lost: WhyLost = no_reason,
) -> JobExit:
    """Wait until the job has ended, its launcher is found frozen, or its ranks have written no
    records for too long.

    update: shows new records, and returns whether there were any.
    silent_s: timeout without records, once the ranks have started.
    has_launcher: the job is a launcher and its ranks, else every process is a rank.
    has_failed: returns whether a rank has failed; its launcher then has `FAILED_S` to end, which
    it never does without the connection to a node. why_lost: returns why the job must end at once;
    empty: it need not.
    """
    heard_at, limit_s = time.monotonic(), max(silent_s, START_S)
    failed_at: float | None = None
    frozen = StateClock()
    while (exit_code := job.poll()) is None:
        now = time.monotonic()
        if patience is not None:
            patience.check()
        if update():
            heard_at, limit_s = now, silent_s
        elif now - heard_at > limit_s:
            return JobExit(None, None, limit_s)
        stopped = job.stopped() if has_launcher else ()
        if frozen.see(stopped or None, now) > FROZEN_S:
            return JobExit(None, reason=_frozen_text(stopped))
        if reason := why_lost():
            return JobExit(None, reason=reason)
        if failed_at is None and has_failed is not None and has_failed():
            failed_at = now
        if failed_at is not None and now > failed_at + FAILED_S:
            return JobExit(None, None)
        time.sleep(POLL_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError):  # a rank that died may have torn its records
        update()
    reason = why_lost(is_over=True) if exit_code else ""
    return JobExit(exit_code, None if has_launcher else job.first_failed, reason=reason)


def _frozen_text(launchers: Sequence[int]) -> str:
    pids = ", ".join(map(str, launchers))
    return (
        f"the launcher (process {pids} on {socket.gethostname()}) was stopped for {FROZEN_S:g} s "
        "(SIGSTOP), and was ended with its ranks"
    )
