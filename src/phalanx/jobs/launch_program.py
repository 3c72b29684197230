"""A program on new ranks: a log a rank, the output or the events of the first shown live, the ranks
watched and ended where they must be, the end judged and recorded.

This process imports neither torch nor MPI, so it answers at once and outlives whatever happens to
the ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.errors import JobLostError, UserError, print_note
from phalanx.jobs import rank_log, run_python
from phalanx.jobs.allocation import Allocation
from phalanx.jobs.binding import OWN_POOLS, THREAD_POOLS, thread_variables
from phalanx.jobs.collector import Collector, marked
from phalanx.jobs.command import Command, local_commands, memory_variables, mpi_job
from phalanx.jobs.elsewhere import end_elsewhere
from phalanx.jobs.first_rank import FirstRankOutput, FirstRankTail, Output
from phalanx.jobs.incomplete import read_incomplete, report_incomplete
from phalanx.jobs.job import Job
from phalanx.jobs.launcher_log import LAUNCHER_LOG, has_not_started
from phalanx.jobs.outcome import JobExit, RankNodes, Verdict, judge
from phalanx.jobs.patience import Patience
from phalanx.jobs.rank_notes import EarlyDeath, is_listening, read_failures
from phalanx.jobs.ranks import DEFAULT_STOP_S, RankRequest
from phalanx.jobs.record import RUN_DIR, close_running, closed_on_error, end_record, outcome_of
from phalanx.jobs.state_clock import StateClock
from phalanx.jobs.stray_daemon import FROZEN_S
from phalanx.jobs.survival import SPARES
from phalanx.jobs.temporary import job_folder
from phalanx.jobs.variables import RENDEZVOUS
from phalanx.records.events import Event
from phalanx.records.files import read_run, record_file
from phalanx.records.last_collectives import DUMP_DIR
from phalanx.records.schema import Run
from phalanx.records.wait_reports import WAIT_REPORTS, remove_reports

POLL_INTERVAL_S = 0.1
START_S = 600.0
"""Minimum time for ranks to start: imports alone may take minutes on a slow network file system."""
SLOW_START_S = 20.0
"""Time after which a line says that no rank has begun."""
FAILED_S = 4.0
"""Time for a launcher to end by itself after a rank has failed: it never does without the
connection to a node."""
LOST_GRACE_S = 1.0
"""Time for the processes of a launcher that does not."""


def program_words(words: Sequence[str]) -> list[str]:
    """Return the command line of a rank: this Python for `program.py` and `-m module`.

    Raises: UserError for a program that does not exist.
    """
    if not words or tuple(words) == ("-m",):
        raise UserError("phalanx launch needs a program: phalanx launch -n 2 program.py")
    first = words[0]
    if first.startswith("-") and first != "-m":
        raise UserError(f"phalanx launch has no option {first}: phalanx launch --help lists them")
    if first.endswith(".py") and not Path(first).is_file():
        raise UserError(f"phalanx launch: there is no file {first}")
    if first == "-m" or first.endswith(".py"):
        return [sys.executable, run_python.__file__, *words]
    if shutil.which(first) is None:
        raise UserError(f"phalanx launch: there is no program {first}")
    return list(words)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program on its ranks, and the handling of ranks that fail, die or are late."""

    words: Sequence[str]
    ranks: RankRequest
    """Its ranks, whose number is known. Threads are theirs unless the user has set them."""
    output: Output | None = None
    """Takes the output of rank 0 while it grows, or of the first that is left."""
    show: Callable[[list[Event]], None] | None = None
    """Takes the new events of that rank; called often, also without any."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the ranks, added to ours."""
    patience_s: float | None = None
    """Seconds that ranks wait for a rank before it is killed."""
    silent_s: float = math.inf
    """Timeout without anything new of rank 0, once it has begun."""
    check: Callable[[], None] = lambda: None
    """Called again and again while the ranks run; what it raises ends them."""
    grace_s: float | None = DEFAULT_STOP_S
    """Seconds for ranks that listen to save and stop after SIGTERM; None: it ends them."""
    begin: Callable[[Path, Launch], None] | None = None
    """Begins the run's own record in the folder, which is this process's to close then; every rank
    writes records, which decide how the run has ended. None: the ranks begin it."""

    def __post_init__(self) -> None:
        """Raises: UserError where there is no MPI, before anything is made."""
        _ = self.ranks.mpi

    def run(self, folder: Path) -> list[int]:
        """Run the program until all ranks have ended; none of their processes is left then.

        folder: for a log a rank and for records, new or with the record of a run that begins.
        Returns: the ranks that died, of a job with `survive` that the others have brought to its
            end.
        Raises: RunFailedError, which names the rank that failed first and shows the end of its log;
            UserError of the same words where that one ended with the exit code of bad input.
        """
        folder.mkdir(parents=True, exist_ok=True)
        shown = None if self.output is None else FirstRankOutput(folder, self.output)
        tail = None if self.show is None else FirstRankTail(folder)
        slow_start = SlowStart(folder, self.ranks.nodes)

        def update() -> bool:
            slow_start.tell()
            self.check()
            events = [] if tail is None else list(tail.read_new())
            if self.show is not None:
                self.show(events)
            has_said = shown is not None and shown.copy_new()
            return bool(events) or has_said or (tail is not None and tail.was_touched())

        if self.begin is not None:
            self.begin(folder, self)
        with closed_on_error(folder, Run), self._meeting() as variables:
            ending, job = self._follow(self._commands(folder, variables), folder, update)
        if shown is not None:
            shown.copy_new()
        return self._close(folder, self._judge(folder, ending, job), job)

    def _follow(
        self, commands: Sequence[Command], folder: Path, update: Callable[[], bool]
    ) -> tuple[JobExit, Job]:
        """Start the processes and wait for them, once more where the launcher has ended by a fault
        of its own before any rank began; return how they ended, and the job that has."""
        nodes = self.ranks.nodes
        for is_second in (False, True):
            with started(commands, folder, nodes) as job:
                if self.grace_s is not None:
                    job.stop_on_termination(
                        lambda: self.begin is not None or is_listening(folder),
                        self.grace_s,
                        has_launcher=self.ranks.has_launcher,
                    )
                ending = watch(job, self, folder, update)
                if ending.exit_code is None and not ending.silent_s:
                    job.end(LOST_GRACE_S)
            if is_second or not has_not_started(folder, ending.exit_code):
                break
            print_note(
                "Open MPI's launcher failed before any rank started, and is started once more; its "
                f"output: {folder / LAUNCHER_LOG}"
            )
        remove_reports(folder)
        return ending, job

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[dict[str, str]]:
        """Yield the variable of a file by which ranks without a launcher find each other."""
        if self.ranks.has_launcher or self.ranks.num_processes == 1:
            yield {}
            return
        with job_folder() as meeting:
            yield {RENDEZVOUS: str(meeting / "rendezvous")}

    def _commands(self, folder: Path, variables: Mapping[str, str]) -> list[Command]:
        """Return the processes to start, with further variables: the launcher of the ranks, or
        every rank."""
        here = str(folder.absolute())
        # Not from the folder at hand: a user's json.py there would be imported.
        program = [sys.executable, "-P", "-m", rank_log.__name__, here, *self.words]
        ranks, number, environ = self.ranks, self.ranks.num_processes, os.environ
        if ranks.mpi is not None:
            commands = [mpi_job(ranks.mpi, number, program, environ=environ, survive=ranks.survive)]
        elif number == 1:
            commands = [Command(words=tuple(program))]
        else:
            commands = local_commands(number, program, environ=environ)
        added = {
            **_process_variables(ranks.threads),
            RUN_DIR: here,
            DUMP_DIR: os.environ.get(DUMP_DIR, here),
            **({SPARES: str(ranks.spares)} if ranks.spares else {}),
            **variables,
            **self.environment,
            WAIT_REPORTS: "" if self.patience_s is None else here,
        }
        return [replace(each, environment={**each.environment, **added}) for each in commands]

    def _judge(self, folder: Path, ending: JobExit, job: Job) -> Verdict:
        """Judge how the job has ended, and end what a failed one has left on other nodes."""
        nodes, ranks, survive = self.ranks.nodes, self.ranks.num_processes, self.ranks.survive
        if not nodes.has_others:
            return judge(folder, ranks, ending, survive=survive)
        names = [name for name, here in nodes.used(ranks) for _ in range(here)]
        known = RankNodes(hosts=dict(enumerate(names)))
        verdict = judge(folder, ranks, ending._replace(nodes=known), survive=survive)
        if verdict.outcome.status != "failed":
            return verdict
        known = known._replace(lost=end_elsewhere(nodes, job.token))
        return judge(folder, ranks, ending._replace(nodes=known), survive=survive)

    def _close(self, folder: Path, verdict: Verdict, job: Job) -> list[int]:
        """Close the run's record as far as no rank has, and return the ranks that were lost; raises
        as `run`."""
        error, outcome = verdict.error, verdict.outcome
        if isinstance(error, JobLostError) and (stopped := job.cut_short(error)) is not None:
            error, outcome = stopped, outcome_of(stopped)
        if error is not None:
            close_running(folder, Run, outcome, over=("failed",) if verdict.is_known else ())
            raise error
        # Rank 0, which keeps its program's record, may be among the lost.
        if self.begin is not None or outcome.lost:
            outcome = read_incomplete(outcome, folder, self.ranks.num_processes)
        if self.begin is not None:
            end_record(folder, Run, outcome)
        elif outcome.lost:
            close_running(folder, Run, outcome)
        if record_file(folder, Run).exists():
            report_incomplete(read_run(folder).outcome)
        return outcome.lost


def watch(job: Job, launch: Launch, folder: Path, update: Callable[[], bool]) -> JobExit:
    """Wait until the job has ended, its launcher is found frozen, or its ranks have written no
    records for too long.

    update: shows new records, and returns whether there were any.
    """
    heard_at, limit_s = time.monotonic(), max(launch.silent_s, START_S)
    failed_at: float | None = None
    ranks, patience_s, frozen = launch.ranks, launch.patience_s, StateClock()
    has_launcher, survive, nodes = ranks.has_launcher, ranks.survive, ranks.nodes
    early_death = EarlyDeath(folder, ranks.num_processes) if survive else None
    patience = None if patience_s is None else Patience(folder, patience_s, job.token, nodes)
    while (exit_code := job.poll()) is None:
        now = time.monotonic()
        if patience is not None:
            patience.check()
        if update():
            heard_at, limit_s = now, launch.silent_s
        elif now - heard_at > limit_s:
            return JobExit(None, silent_s=limit_s)
        stopped = job.stopped() if has_launcher else ()
        if frozen.see(stopped or None, now) > FROZEN_S:
            return JobExit(None, reason=_frozen_text(stopped))
        if early_death is not None and (reason := early_death.why()):
            return JobExit(None, reason=reason)
        if failed_at is None and has_launcher and must_end(folder, survive=survive):
            failed_at = now
        if failed_at is not None and now > failed_at + FAILED_S:
            return JobExit(None)
        time.sleep(POLL_INTERVAL_S)
    with contextlib.suppress(OSError, ValueError):  # a rank that died may have torn its records
        update()
    reason = early_death.why(is_over=True) if early_death is not None and exit_code else ""
    return JobExit(exit_code, reason=reason)


def _frozen_text(launchers: Sequence[int]) -> str:
    pids = ", ".join(map(str, launchers))
    return (
        f"the launcher (process {pids} on {socket.gethostname()}) was stopped for {FROZEN_S:g} s "
        "(SIGSTOP), and was killed with its ranks"
    )


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
        print_note(
            f"no rank has started after {SLOW_START_S:g} s: waiting for nodes, whose logins may be "
            "slow or whose ports a firewall may block; to examine them: phalanx doctor --hosts "
            f"{hosts}"
        )


def must_end(folder: Path, *, survive: bool) -> bool:
    """Return whether the job must end soon: a rank has failed, and its launcher may not end the
    others, such as one without its daemon. With `survive` it need not for those that died."""
    return any(failure.exit_code >= 0 or not survive for failure in read_failures(folder))


@contextlib.contextmanager
def started(commands: Sequence[Command], folder: Path, nodes: Allocation) -> Iterator[Job]:
    """Start the processes of a job and end them with the block; all records are then in
    `folder`."""
    if not nodes.has_others:
        with Job.start(commands, folder / LAUNCHER_LOG) as local:
            yield local
        return
    collector = Collector(folder)
    job: Job | None = None
    try:
        with marked(folder, collector.key) as variables:
            there = [replace(c, environment={**c.environment, **variables}) for c in commands]
            with Job.start(there, folder / LAUNCHER_LOG, output=collector.output) as running:
                job = running
                collector.release()
                yield job
    except BaseException:
        if job is not None:
            end_elsewhere(nodes, job.token)
        raise
    finally:
        collector.wait()


def _process_variables(threads: int | None) -> dict[str, str]:
    """Return the variables of a rank's threads, memory and output that the user has not set.

    threads: as of `Launch`.
    """
    wanted = {
        **thread_variables(threads, os.environ),
        **memory_variables(os.environ),
        "PYTHONUNBUFFERED": "1",
    }
    if wanted.get(OWN_POOLS):
        wanted[OWN_POOLS] = " ".join(name for name in THREAD_POOLS if name not in os.environ)
    return {name: value for name, value in wanted.items() if name not in os.environ}
