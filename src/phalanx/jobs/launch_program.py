"""A program on new ranks: a log a rank, the output or the events of the first shown live, the end
judged and recorded.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from phalanx.errors import JobLostError, UserError
from phalanx.jobs import rank_log, run_python
from phalanx.jobs.allocation import THIS_MACHINE, Allocation, allocation
from phalanx.jobs.binding import OWN_POOLS, THREAD_POOLS, thread_variables
from phalanx.jobs.command import Command, local_commands, memory_variables, mpi_job
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.elsewhere import end_elsewhere
from phalanx.jobs.first_rank import FirstRankOutput, FirstRankTail, Output
from phalanx.jobs.follow import follow
from phalanx.jobs.incomplete import read_incomplete, report_incomplete
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.job import DEFAULT_STOP_S, Job
from phalanx.jobs.listening import is_listening
from phalanx.jobs.outcome import JobExit, RankNodes, Verdict, judge
from phalanx.jobs.record import close_running, closed_on_error, end_record, outcome_of
from phalanx.records.events import Event
from phalanx.records.files import read_run, record_file
from phalanx.records.schema import Outcome, Run
from phalanx.records.wait_reports import WAIT_REPORTS


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
    output: Output | None = None,
    show: Callable[[list[Event]], None] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    survive: bool = False,
    patience_s: float | None = None,
    silent_s: float = math.inf,
    check: Callable[[], None] = lambda: None,
    grace_s: float | None = DEFAULT_STOP_S,
    keeps_record: bool = False,
) -> list[int]:
    """Run `words` on new ranks until they have ended; none of their processes is left then.

    folder: for a log a rank and for records, new or with the record of a run that begins.
    threads: of each rank, unless the user has set them; None: by the cores of its node, where that
    is another one. mpi: None for processes without a launcher.
    output: takes the output of rank 0 while it grows, or of the first that is left. show: takes
    their new events; called often, also without any. environment: added to ours.
    survive: the others go on when a rank dies. patience_s: a rank that keeps others waiting for
    longer is killed. silent_s: timeout without anything new of rank 0, once it has begun.
    check: called again and again while the ranks run; what it raises ends them.
    grace_s: for ranks that listen to save and stop after SIGTERM; None: it ends them.
    keeps_record: every rank writes records, which decide how the run has ended, and the run's own
    record is this process's to close.
    Returns: the ranks that died, of a job with `survive` that the others have brought to its end.
    Raises: RunFailedError, which names the rank that failed first and shows the end of its log;
            UserError of the same words where that one ended with the exit code of bad input.
    """
    folder.mkdir(parents=True, exist_ok=True)
    added = {
        **_process_variables(threads),
        **environment,
        WAIT_REPORTS: "" if patience_s is None else str(folder.absolute()),
    }
    commands = [
        replace(command, environment={**command.environment, **added})
        for command in _commands(folder, words, ranks, mpi, survive=survive)
    ]
    nodes = THIS_MACHINE if mpi is None else allocation(os.environ)
    shown = None if output is None else FirstRankOutput(folder, ranks, output)
    tail = None if show is None else FirstRankTail(folder, ranks)

    def update() -> bool:
        check()
        has_said = shown is not None and shown.copy_new()
        if tail is None or show is None:
            return has_said
        events = list(tail.read_new())
        show(events)
        return bool(events) or tail.was_touched() or has_said

    with closed_on_error(folder, Run):
        ending, job = follow(
            commands,
            folder,
            nodes,
            update,
            ranks=ranks,
            has_launcher=mpi is not None,
            survive=survive,
            silent_s=silent_s,
            patience_s=patience_s,
            grace_s=grace_s,
            listens=lambda: keeps_record or is_listening(folder),
        )
    if shown is not None:
        shown.copy_new()
    verdict = _judge(folder, ranks, ending, nodes, job, survive=survive)
    return _close(folder, verdict, ranks, job, keeps_record=keeps_record)


def _commands(
    folder: Path, words: Sequence[str], ranks: int, mpi: MpiInstallation | None, *, survive: bool
) -> list[Command]:
    """Return the processes to start: the launcher of the ranks, or every rank."""
    # Not from the folder at hand: a user's json.py there would be imported.
    program = [sys.executable, "-P", "-m", rank_log.__name__, str(folder.absolute()), *words]
    if mpi is not None:
        cores = usable_cores()
        return [mpi_job(mpi, ranks, program, cores=cores, environ=os.environ, survive=survive)]
    if ranks == 1:
        return [Command(words=tuple(program))]
    return local_commands(ranks, program, environ=os.environ)


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
    folder: Path, ranks: int, ending: JobExit, nodes: Allocation, job: Job, *, survive: bool
) -> Verdict:
    """Judge how a job has ended, and end what a failed one has left on other nodes."""
    if not nodes.has_others:
        return judge(folder, ranks, ending, survive=survive)
    placed = zip(nodes.nodes, nodes.placed(ranks), strict=True)
    names = [node.name for node, here in placed for _ in range(here)]
    known = RankNodes(hosts=dict(enumerate(names)))
    verdict = judge(folder, ranks, ending._replace(nodes=known), survive=survive)
    if verdict.outcome.status != "failed":
        return verdict
    known = known._replace(lost=end_elsewhere(nodes, job.token))
    return judge(folder, ranks, ending._replace(nodes=known), survive=survive)


def _close(
    folder: Path, verdict: Verdict, ranks: int, job: Job, *, keeps_record: bool
) -> list[int]:
    """Close the run's record as far as no rank has, and return the ranks that were lost; raises as
    `launch_program`."""
    error, outcome = verdict.error, verdict.outcome
    if isinstance(error, JobLostError) and (stopped := job.cut_short(error)) is not None:
        error, outcome = stopped, outcome_of(stopped)
    if error is not None:
        close_running(folder, Run, outcome, over=("failed",) if verdict.is_known else ())
        raise error
    if keeps_record or outcome.lost:  # rank 0, which keeps its program's, may be among them
        outcome = read_incomplete(outcome, folder, ranks)
    if keeps_record:
        end_record(folder, Run, outcome)
    elif outcome.lost:
        close_running(folder, Run, outcome)
    if record_file(folder, Run).exists():
        report_incomplete(read_run(folder).outcome)
    return outcome.lost


def check_completed(folder: Path) -> None:
    """Raises: JobLostError where ranks that the launcher calls successful have begun a run, and
    have not written down its end."""
    if record_file(folder, Run).exists() and read_run(folder).outcome.status == "running":
        error = "the launcher reported success, and the run has not written down its end"
        close_running(folder, Run, Outcome(status="failed", error=error))
        raise JobLostError(f"{error}\n  output of the ranks: {folder / 'rank-*.log'}")
