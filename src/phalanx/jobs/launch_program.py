"""A program of the user's on new ranks: output of rank 0 live, a log a rank, the first failure."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from phalanx.errors import (
    EXIT_STOPPED,
    JobLostError,
    RunFailedError,
    RunStoppedError,
    UserError,
)
from phalanx.jobs.collector import Collector
from phalanx.jobs.early_death import EarlyDeath, no_reason
from phalanx.jobs.first_rank import FirstRankOutput, Output
from phalanx.jobs.incomplete import report_incomplete
from phalanx.jobs.launcher_log import (
    LAUNCHER_LOG,
    first_words,
    last_exception,
    last_lines,
    lost_daemon,
)
from phalanx.jobs.outcome import (
    ONE_NODE,
    PEER_DISCONNECTED,
    JobExit,
    RankNodes,
    determine_outcome,
    is_about_loss,
    is_about_peer,
    on_host,
    was_stopped,
)
from phalanx.jobs.record import end_record, outcome_of
from phalanx.jobs.runtime import follow
from phalanx.launch import run_python
from phalanx.launch.allocation import THIS_MACHINE, Allocation, allocation
from phalanx.launch.binding import OWN_POOLS, THREAD_POOLS, thread_variables
from phalanx.launch.command import Command, memory_variables, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.elsewhere import end_elsewhere
from phalanx.launch.installation import MpiInstallation
from phalanx.launch.job import DEFAULT_STOP_S, Job
from phalanx.launch.listening import is_listening
from phalanx.launch.rank_failure import RankFailure
from phalanx.launch.rank_log import log_file, read_ends, read_failures
from phalanx.records.failures import EXIT_BAD_INPUT, EXIT_FAILED
from phalanx.records.files import read_failure, read_run, record_file
from phalanx.records.schema import Failure, Outcome, Run
from phalanx.records.wait_reports import WAIT_REPORTS

SHOWN_LINES = 20
"""Of the log of the rank that failed first."""
LOSSES = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGPIPE, PEER_DISCONNECTED)
"""Exit codes of ranks that ended by no failure of their program."""


def program_words(words: Sequence[str]) -> list[str]:
    """Return the command line of a rank: this Python for `program.py` and `-m module`.

    Raises: UserError for a program that does not exist.
    """
    if not words or tuple(words) == ("-m",):
        raise UserError("phalanx launch: name a program: phalanx launch -n 2 program.py")
    first = words[0]
    if first.endswith(".py") and not Path(first).is_file():
        raise UserError(f"phalanx launch: there is no file {first}")
    if first == "-m" or first.endswith(".py"):
        return [sys.executable, run_python.__file__, *words]
    if shutil.which(first) is None:
        raise UserError(f"phalanx launch: there is no program {first}")
    return list(words)


def launch_program(
    folder: Path,
    words: Sequence[str],
    *,
    ranks: int,
    threads: int | None,
    mpi: MpiInstallation | None,
    output: Output,
    environment: Mapping[str, str] = MappingProxyType({}),
    survive: bool = False,
    patience_s: float | None = None,
    check: Callable[[], None] = lambda: None,
    grace_s: float = DEFAULT_STOP_S,
) -> list[int]:
    """Run `words` on new ranks, and copy the output of rank 0 while it grows.

    folder: new or empty, for a log a rank. threads: of each rank, unless the user has set them;
    None: by the cores of its node, where that is another one.
    mpi: None for one process without a launcher. environment: added to ours. survive: the others
    go on when a rank dies. patience_s: a rank that keeps others waiting for longer is killed.
    check: called again and again while the ranks run; what it raises ends them.
    grace_s: for ranks that listen to save and stop after SIGTERM.
    Returns: the ranks that died, of a job with `survive` that the others have brought to its end.
    Raises: RunFailedError, which names the rank that failed first and shows the end of its log;
            UserError of the same words where that one ended with the exit code of bad input.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = _command(folder, words, ranks, mpi, survive=survive)
    reports = {WAIT_REPORTS: "" if patience_s is None else str(folder.absolute())}
    others = {**_process_variables(threads), **environment, **reports}
    nodes = THIS_MACHINE if mpi is None else allocation(os.environ)
    shown = FirstRankOutput(folder, ranks, output)

    def update() -> bool:
        check()
        return shown.copy_new()

    with _closed_on_error(folder):
        ending, job, collector = follow(
            [replace(command, environment={**command.environment, **others})],
            folder,
            nodes,
            update,
            has_launcher=mpi is not None,
            has_failed=partial(_must_end, folder, survive=survive),
            patience_s=patience_s,
            grace_s=grace_s,
            listens=partial(is_listening, folder),
            why_lost=EarlyDeath(folder, ranks).why if survive else no_reason,
        )
    shown.copy_new()
    try:
        lost = _judge(folder, ranks, ending, nodes, job, collector, survive=survive)
    except JobLostError as error:
        if (stopped := job.cut_short(error)) is None:
            raise
        with contextlib.suppress(OSError, ValueError, RunFailedError):
            end_record(folder, Run, outcome_of(stopped))
        raise stopped from error
    if record_file(folder, Run).exists():
        report_incomplete(read_run(folder).outcome)
    return lost


@contextlib.contextmanager
def _closed_on_error(folder: Path) -> Iterator[None]:
    """Write how the run ended where the block is left by an error, and no rank has done so."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError, RunFailedError):
            if _status(folder) == "running":
                end_record(folder, Run, outcome_of(error))
        raise


def _command(
    folder: Path, words: Sequence[str], ranks: int, mpi: MpiInstallation | None, *, survive: bool
) -> Command:
    """Return the one process to start: the launcher of the ranks, or the only rank."""
    # Not from the folder at hand: a user's json.py there would be imported.
    stub = [sys.executable, "-P", "-m", "phalanx.launch.rank_log", str(folder.absolute())]
    program = [*stub, *words]
    if mpi is None:
        return Command(words=tuple(program))
    cores = usable_cores()
    return mpi_job(mpi, ranks, program, cores=cores, environ=os.environ, survive=survive)


def _process_variables(threads: int | None) -> dict[str, str]:
    """Return the variables of a rank's threads, memory and output that the user has not set.

    threads: as of `launch_program`.
    """
    wanted = {
        **thread_variables(threads, os.environ),
        **memory_variables(os.environ),
        "PYTHONUNBUFFERED": "1",
    }
    if wanted.get(OWN_POOLS):
        wanted[OWN_POOLS] = " ".join(name for name in THREAD_POOLS if name not in os.environ)
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _judge(
    folder: Path,
    ranks: int,
    ending: JobExit,
    nodes: Allocation,
    job: Job,
    collector: Collector | None,
    *,
    survive: bool,
) -> list[int]:
    """Return the ranks that died in a job that has come to its end all the same; raises as
    `launch_program`. The other arguments: as `follow` returns them."""
    code = job.poll() or 0
    ends = {rank: end.exit_code for rank, end in collector.ends.items()} if collector else {}
    ends |= read_ends(folder)
    is_stopped = was_stopped(code) and all(was_stopped(f.exit_code) for f in read_failures(folder))
    if is_stopped or (survive and lost_ranks(ranks, ends, end=EXIT_STOPPED) is not None):
        raise RunStoppedError("stopped as asked: the same command goes on from its checkpoint")
    if survive and not ending.reason:
        lost = lost_ranks(ranks, ends)
        if lost is not None:
            if _status(folder) == "running":  # rank 0 is among them
                end_record(folder, Run, determine_outcome(folder, ranks, JobExit(0)))
            return lost
        code = code or EXIT_FAILED  # the launcher's says nothing
        ending = ending._replace(reason=EarlyDeath(folder, ranks).why(is_over=True))
    if collector is not None:
        ending = ending._replace(exit_code=code)
        _check_nodes(folder, ending, nodes, job.token, collector, ranks=ranks, survive=survive)
    elif ending.reason:
        raise _loss(folder, [ending.reason])
    elif code:
        error = _failure(folder, code, survive=survive)
        _close_run(folder, str(error).splitlines()[0])
        raise error
    return []


def _must_end(folder: Path, *, survive: bool) -> bool:
    """Return whether the job must end soon: a rank has failed, and its launcher may not end the
    others, such as one without its daemon. With `survive` it need not for those that died."""
    return any(failure.exit_code >= 0 or not survive for failure in read_failures(folder))


def lost_ranks(ranks: int, ends: Mapping[int, int], *, end: int = 0) -> list[int] | None:
    """Return the ranks that died, where all others ended with the code `end`; None where they did
    not.

    ends: exit codes by rank, negative for a signal; none of a rank whose node is gone.
    """
    lost = [rank for rank in range(ranks) if ends.get(rank) != end]
    is_finished = len(lost) < ranks and all(ends.get(rank, -1) < 0 for rank in lost)
    return lost if is_finished else None


def _failure(
    folder: Path,
    code: int,
    nodes: RankNodes = ONE_NODE,
    details: Sequence[str] = (),
    *,
    survive: bool,
) -> UserError | RunFailedError:
    """Return the error of a program whose ranks have failed: a loss, where the first to end was
    killed, or missed another. code: of the launcher."""
    failures = read_failures(folder, deaths_first=survive)
    told: Failure | None = None
    with contextlib.suppress(OSError, ValueError):
        told = read_failure(folder)
    misses_peer = told is not None and is_about_peer(told.message)
    if survive and told is not None and not misses_peer:  # the deaths before were survived
        own = told.rank
        failures.sort(key=lambda failure: failure.rank != own)
    why = "\n  ".join([_why(folder, code, failures, nodes), *details])
    if failures and failures[0].exit_code == EXIT_BAD_INPUT:
        return UserError(why)
    is_lost = misses_peer or (told is not None and is_about_loss(told.message))
    is_loss = is_lost or not failures or failures[0].exit_code in LOSSES
    return JobLostError(why) if is_loss else RunFailedError(why)


def check_completed(folder: Path) -> None:
    """Raises: JobLostError where ranks that the launcher calls successful have begun a run, and
    have not written down its end."""
    if _status(folder) == "running":
        error = "the launcher reported success, and the run has not written down its end"
        _close_run(folder, error)
        raise JobLostError(f"{error}\n  {_logs(folder)}")


def _check_nodes(
    folder: Path,
    ending: JobExit,
    nodes: Allocation,
    token: str,
    collector: Collector,
    *,
    ranks: int,
    survive: bool,
) -> None:
    """Raise RunFailedError unless all ranks on several nodes have come to a good end: a launcher
    that has lost a node may report success. What is left on the nodes is ended."""
    ends = {rank: end.exit_code for rank, end in collector.ends.items()}
    silent = [rank for rank in range(ranks) if rank not in ends]
    if not (ending.exit_code or silent or any(ends.values())):
        return
    lost = end_elsewhere(nodes, token)
    known = RankNodes(hosts=collector.hosts, ends=ends, lost=lost)
    why_lost = [f"{node} does not answer: {why}" for node, why in lost.items()]
    gone = [rank for rank in silent if collector.hosts.get(rank) in lost]
    if ending.reason:
        raise _loss(folder, [ending.reason, *why_lost])
    if gone and not survive:
        what = f"{known.list(gone)} ended without a word: its node is gone, or cannot be reached"
        raise _loss(folder, [what, *why_lost])
    silent_words = f"{known.list(silent)} ended without a word" if silent else ""
    _close_run(folder, silent_words or "ranks ended without a word")
    details = []
    if silent_words and not read_failures(folder):
        details.append(silent_words)
        if (host := lost_daemon(folder)) is not None:
            said = first_words(folder, with_fix=True)
            details.append(
                f"the launcher lost its daemon on {host}" + (f": {said}" if said else "")
            )
    code = ending.exit_code or 0
    raise _failure(folder, code, known, [*details, *why_lost], survive=survive)


def _loss(folder: Path, whys: Sequence[str]) -> JobLostError:
    """Close the run's record and return the error, where it is known what was lost."""
    _close_run(folder, "\n  ".join(whys), is_known=True)
    return JobLostError("\n  ".join([*whys, _logs(folder)]))


def _status(folder: Path) -> str | None:
    """Return the status of the run's record there; None where there is none."""
    return read_run(folder).outcome.status if record_file(folder, Run).exists() else None


def _close_run(folder: Path, error: str, *, is_known: bool = False) -> None:
    """Write how a program's run ended, where no rank could: rank 0 is gone, or another one failed
    on a node that lacks the folder. error: where no failure was reported.
    is_known: it comes before what a rank has reported, which may be what it saw of it."""
    with contextlib.suppress(OSError, ValueError, RunFailedError):
        if _status(folder) in (("running", "failed") if is_known else ("running",)):
            failure = read_failure(folder)
            outcome = Outcome(status="failed", error=error)
            if failure is not None and not is_known:
                error = failure.message + on_host(failure)
                outcome = Outcome(status="failed", error=error, rank=failure.rank)
            end_record(folder, Run, outcome)


def _why(folder: Path, code: int, failures: Sequence[RankFailure], nodes: RankNodes) -> str:
    """Return which rank failed first, and the end of what it said."""
    if not failures:
        said = last_lines(folder) or first_words(folder)
        words = f": {said}" if said else ""
        return f"no rank began, or all were killed (exit code {code}){words}\n  {_logs(folder)}"
    first = failures[0]
    log = log_file(folder, first.rank)
    with log.open(errors="replace") as file:
        lines = deque(file, SHOWN_LINES) if first.rank else ()
    shown = "".join(f"  | {line.rstrip()}\n" for line in lines)
    raised = last_exception(log)
    if raised is None and first.exit_code == PEER_DISCONNECTED:  # MPI has ended it
        raised = first_words(folder)
    why = f"({_ended(first)})" + (f": {raised}" if raised else "")
    return f"rank {nodes.name(first.rank)} failed first {why}\n{shown}  {_logs(folder)}"


def _ended(failure: RankFailure) -> str:
    if failure.exit_code >= 0:
        return f"exit code {failure.exit_code}"
    return signal.Signals(-failure.exit_code).name


def _logs(folder: Path) -> str:
    return f"output of the ranks: {folder / 'rank-*.log'}, of the launcher: {folder / LAUNCHER_LOG}"
