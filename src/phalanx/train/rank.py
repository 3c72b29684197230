"""One rank from start to end: any error in it ends all ranks, and is reported once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.errors import UserError
from phalanx.jobs.record import end_record
from phalanx.launch.binding import pool_threads
from phalanx.launch.detect import Launched, detect
from phalanx.records.events import StartedEvent
from phalanx.records.failures import (
    EXIT_FAILED,
    failure_of,
    report_failure,
    unseen_record,
)
from phalanx.records.files import rank_file, read_events, read_failure, read_run
from phalanx.records.last_collectives import last_collectives_file
from phalanx.records.schema import Outcome, Run
from phalanx.run.stop import Stopped
from phalanx.train.config import TrainConfig
from phalanx.train.run_output import RunOutput
from phalanx.train.session import train

# What is wrong with the options is found by all ranks at once, before they share a folder in
# which only one could be the first to say so: the others leave rank 0 the time to end them.
ECHO_DELAY_S = 2.0
EXIT_TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):  # no error: a request
    """Another process asked this one to end."""


def run_started_by_phalanx(folder: Path) -> None:
    """Run a rank that `phalanx train` started; options come from the run's record. Ends the process
    when anything fails."""
    launched = detect(os.environ)
    try:
        config = TrainConfig.from_record(read_run(folder).config)
    except (OSError, UserError) as error:
        _fail(unseen_record(error), launched.rank if launched else 0, RunOutput(folder=None))
    if config.threads is None:  # its node's cores decide, as its variables tell
        config = replace(config, threads=pool_threads(os.environ))
    run_guarded(config, launched, folder)


def run_started_by_launcher(config: TrainConfig, launched: Launched) -> Path | None:
    """Run a rank that the user's own mpirun, srun or torchrun started. Rank 0 keeps the run's
    record, in a folder that it names to its peers. Ends the process when anything fails.

    Returns: the folder.
    """
    return run_guarded(config, launched, None)


def run_guarded(config: TrainConfig, launched: Launched | None, folder: Path | None) -> Path | None:
    """Train; an error is written down and ends all ranks, the first one is shown.

    Returns: the folder of the records.
    """
    rank = launched.rank if launched else 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    output = RunOutput(folder=folder)
    output.on_terminate = partial(_note_request, rank, output)
    try:
        try:
            train(config, launched, output)
        except (Terminated, KeyboardInterrupt, Stopped):
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is, the others must not hang
            _fail(error, rank, output)
    except (Terminated, KeyboardInterrupt) as request:  # also one that came while this rank failed
        _stop(request, rank, output)
    return output.folder


def _raise_terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a launcher sends it to this process and its group
    raise Terminated


def _note_request(rank: int, output: RunOutput) -> None:
    """Write down what would be lost, should the launcher end this rank after its SIGTERM: that of
    Open MPI gives 0.2 s."""
    if output.writer:
        _attempt(output.writer.flush)
    if rank == 0:
        _end_kept_run(output, _outcome_of_request(output))


def _outcome_of_request(output: RunOutput) -> Outcome:
    """Return the outcome of a run whose rank 0 is asked to end."""
    known = None
    if output.keeps_run and output.folder is not None:
        known = _known_failure(output, output.folder)
    return known or Outcome(status="interrupted")


def _stop(request: BaseException, rank: int, output: RunOutput) -> NoReturn:
    """End this rank as asked; its records are closed as far as they can be written."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ending already
    try:
        outcome = Outcome(status="interrupted")
        if rank == 0:
            outcome = _outcome_of_request(output)
        _attempt(lambda: output.dump(f"rank {rank} was ended: {type(request).__name__}"))
        _attempt(output.close)
        if rank == 0:
            _end_kept_run(output, outcome)
    finally:
        os._exit(EXIT_TERMINATED)  # not through MPI_Finalize, which would wait for peers


def _known_failure(output: RunOutput, folder: Path) -> Outcome | None:
    """Return the failure of a rank, if that is why the launcher now ends the others.

    A rank that is ended as this one is leaves its last collectives; one that was killed does not.
    """
    with contextlib.suppress(Exception):
        failure = read_failure(folder)
        if failure is not None:
            return Outcome(status="failed", error=failure.message, rank=failure.rank)
        if output.group is None or not output.group.recorders():
            return None
        for rank in range(1, output.group.size):
            file = rank_file(folder, rank)
            first = next(iter(read_events(file)), None) if file.exists() else None
            if isinstance(first, StartedEvent) and _is_killed(first, folder):
                error = f"rank {rank} ended without a word"
                return Outcome(status="failed", error=error, rank=rank)
    return None


def _is_killed(rank: StartedEvent, folder: Path) -> bool:
    """Return whether the process of a rank on this node is gone without having written why."""
    if rank.hostname != socket.gethostname() or last_collectives_file(folder, rank.rank).exists():
        return False
    try:
        os.kill(rank.process_id, 0)
    except ProcessLookupError:
        return True
    return False


def _fail(error: BaseException, rank: int, output: RunOutput) -> NoReturn:
    """End all ranks. Nothing before it may keep this rank from `abort`: its peers wait."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a launcher that has noticed as well
    try:
        _attempt(lambda: output.dump(f"{type(error).__name__}: {error}"))
        _attempt(output.close)
        if output.gathered:
            output.gathered.tell_where()
        if output.folder is None and rank > 0:
            time.sleep(ECHO_DELAY_S)
    finally:
        exit_code = EXIT_FAILED
        try:
            failure = failure_of(error, rank)
            exit_code, is_first = report_failure(output.folder, failure)
            if is_first:
                outcome = Outcome(status="failed", error=failure.message, rank=rank)
                _end_kept_run(output, outcome)
        finally:
            from phalanx.comm.abort import abort  # a single process needs nothing else of comm

            abort(exit_code)


def _end_kept_run(output: RunOutput, outcome: Outcome) -> None:
    """Close `run.json` where the ranks themselves keep it."""
    folder = output.folder
    if folder and output.keeps_run and (folder / "run.json").exists():
        _attempt(lambda: end_record(folder, Run, outcome))


def _attempt(step: Callable[[], object]) -> None:
    """Try one step of the shutdown, which may fail: the disk may be what this rank failed of."""
    with contextlib.suppress(Exception):
        step()
