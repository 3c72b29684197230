"""One rank from start to end: any error in it ends all ranks, and is reported once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.launch.detect import Launched
from phalanx.launch.orphan import end_with_parent
from phalanx.launch.stray_daemon import end_frozen_daemons
from phalanx.records.failures import EXIT_FAILED, failure_of, report_failure
from phalanx.records.schema import Outcome

EXIT_TERMINATED = 128 + signal.SIGTERM


def run_rank(folder: Path, launched: Launched | None, work: Callable[[], None]) -> None:
    """Do the work of a rank that Phalanx started; any error ends all ranks and this process.

    folder: of the records of the ranks.
    """
    end_with_parent()
    end_frozen_daemons()
    signal.signal(signal.SIGTERM, _end)
    try:
        work()
    except BaseException as error:  # noqa: BLE001  # whatever it is, the peers must not hang
        fail(error, launched.rank if launched else 0, folder)


def fail(
    error: BaseException,
    rank: int,
    folder: Path | None,
    *,
    on_first: Callable[[Outcome], None] | None = None,
) -> NoReturn:
    """Write down the error that is being handled, and end all ranks.

    folder: of the records, None where no rank knows it yet.
    on_first: called with the outcome of the job when no other rank has failed before.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a launcher that has noticed as well
    exit_code = EXIT_FAILED
    try:
        failure = failure_of(error, rank)
        exit_code, is_first = report_failure(folder, failure)
        if is_first and on_first is not None:
            on_first(Outcome(status="failed", error=failure.message, rank=rank))
    finally:
        from phalanx.comm.abort import abort  # a single process needs nothing else of comm

        abort(exit_code)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_TERMINATED)  # not through MPI_Finalize, which would wait for the peers
