"""The failure of a rank, as it is written down, and the exit codes that tell of it: where the disk
is full they alone do."""

from __future__ import annotations

import socket
import traceback

from phalanx.errors import UserError
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
