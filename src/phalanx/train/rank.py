"""One rank from start to end: any error in it ends all ranks, and is reported once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.errors import UserError
from phalanx.jobs.binding import pool_threads
from phalanx.jobs.detect import Launched, detect
from phalanx.records.failures import (
    EXIT_FAILED,
    failure_of,
    report_failure,
    unseen_record,
)
from phalanx.records.files import read_run
from phalanx.records.schema import Outcome
from phalanx.run.failure import ECHO_DELAY_S, open_records
from phalanx.run.stop import Stopped
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

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
        _fail(unseen_record(error), launched.rank if launched else 0, None)
    if config.threads is None:  # its node's cores decide, as its variables tell
        config = replace(config, threads=pool_threads(os.environ))
    run_guarded(config, launched, folder)


def run_guarded(config: TrainConfig, launched: Launched | None, folder: Path | None) -> Path | None:
    """Train; an error is written down and ends all ranks, the first one is shown.

    folder: of the records; None: the user's own mpirun, srun or torchrun has started the ranks, and
        rank 0 keeps the run's record, in a folder that it names to its peers.
    Returns: the folder of the records; None where nothing was left to do.
    """
    rank = launched.rank if launched else 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        try:
            return train(config, launched, folder)
        except (Terminated, KeyboardInterrupt, Stopped):
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is, the others must not hang
            _fail(error, rank, folder)
    except (Terminated, KeyboardInterrupt) as request:  # also one that came while this rank failed
        _stop(request, rank)


def _raise_terminated(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a launcher sends it to this process and its group
    raise Terminated


def _stop(request: BaseException, rank: int) -> NoReturn:
    """End this rank as asked; its records are closed as far as they can be written."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ending already
    try:
        for records in open_records():
            records.dump(f"rank {rank} was ended: {type(request).__name__}")
            records.expect_end()
            records.close_files()
    finally:
        os._exit(EXIT_TERMINATED)  # not through MPI_Finalize, which would wait for peers


def _fail(error: BaseException, rank: int, folder: Path | None) -> NoReturn:
    """End all ranks. Nothing before it may keep this rank from `abort`: its peers wait."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a launcher that has noticed as well
    end_kept: Callable[[Outcome], None] | None = None
    try:
        for records in open_records():
            folder, end_kept = records.folder, records.end_kept_run
            records.dump(f"{type(error).__name__}: {error}")
            records.close_files()
        if folder is None and rank > 0:
            # What is wrong with the options is found by all ranks at once, before they share a
            # folder in which only one could be the first to say so: the others leave rank 0 the
            # time to end them.
            time.sleep(ECHO_DELAY_S)
    finally:
        exit_code = EXIT_FAILED
        try:
            failure = failure_of(error, rank)
            exit_code, is_first = report_failure(folder, failure)
            if is_first and end_kept is not None:
                end_kept(Outcome(status="failed", error=failure.message, rank=rank))
        finally:
            from phalanx.comm.abort import abort  # a single process needs nothing else of comm

            abort(exit_code)
