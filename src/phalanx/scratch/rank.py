"""A rank from start to end: whatever goes wrong in it ends all ranks, and is said once."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.comm.world import abort
from phalanx.errors import UserError
from phalanx.launch.detect import detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.files import write_failure
from phalanx.records.schema import Failure
from phalanx.scratch.session import train

EXIT_BAD_INPUT = 2
EXIT_TERMINATED = 128 + signal.SIGTERM


def run_rank(folder: Path, images: Path) -> None:
    """Train; ends the process when anything fails."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _end)
    launched = detect(os.environ)
    try:
        train(folder, images, launched)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the others must not hang
        _fail(error, launched.rank if launched else 0, folder)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_TERMINATED)  # not by way of MPI_Finalize, which would wait for the others


def _fail(error: BaseException, rank: int, folder: Path) -> NoReturn:
    mendable = isinstance(error, UserError)
    message = str(error) if mendable else f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank, mendable=mendable, message=message, traceback=traceback.format_exc()
    )
    if write_failure(folder, failure):
        where = "" if mendable else f"rank {rank}: "
        print(f"phalanx: {where}{message}", file=sys.stderr, flush=True)
    abort(EXIT_BAD_INPUT if mendable else 1)
