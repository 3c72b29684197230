"""The failure of one rank, which ends all ranks and is reported once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from phalanx.records.failures import EXIT_FAILED, failure_of, report_failure
from phalanx.records.schema import Outcome

EXIT_TERMINATED = 128 + signal.SIGTERM


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
