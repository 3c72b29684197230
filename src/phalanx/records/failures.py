"""The failure of a rank, written down and printed as far as the system still allows.

A rank that fails must end the others by all means, so nothing here raises: where the disk is full
the exit code alone tells the parent what happened.
"""

from __future__ import annotations

import socket
import traceback
from pathlib import Path

from phalanx.errors import UserError, print_note
from phalanx.records.files import write_failure
from phalanx.records.schema import Failure

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNWRITABLE = 74
"""EX_IOERR of sysexits.h: the failure itself could not be written to `error.json`."""


def failure_of(error: BaseException, rank: int) -> Failure:
    """Describe `error`, with its traceback."""
    mendable = isinstance(error, UserError)
    message = str(error) if mendable else f"{type(error).__name__}: {error}"
    return Failure(
        rank=rank,
        mendable=mendable,
        message=message,
        traceback="".join(traceback.format_exception(error)),
        hostname=socket.gethostname(),
    )


def report_failure(folder: Path | None, failure: Failure) -> tuple[int, bool]:
    """Write `error.json` and, unless another rank was first, print the message to standard error.

    folder: of the records, None where no rank knows it yet.
    Returns: the exit code of the rank, and whether it was the first to fail.
    """
    exit_code = EXIT_BAD_INPUT if failure.mendable else EXIT_FAILED
    is_first = True
    if folder is not None:
        try:
            is_first = write_failure(folder, failure)
        except OSError:
            exit_code = EXIT_UNWRITABLE
    if is_first:
        where = "" if failure.mendable else f"rank {failure.rank}: "
        print_note(f"{where}{failure.message}")
    return exit_code, is_first


def unseen_record(error: Exception) -> UserError:
    """Say on which node a record cannot be read that the launching node has just written."""
    return UserError(
        f"{error}, as {socket.gethostname()} sees it: ranks on several nodes need a folder for "
        "their records that all nodes share; name one with --run-dir"
    )
