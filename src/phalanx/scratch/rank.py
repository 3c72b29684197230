"""A rank from start to end: whatever goes wrong in it ends all ranks, and is said once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.comm.world import abort
from phalanx.launch.detect import detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.failures import EXIT_FAILED, failure_of, report_failure
from phalanx.scratch.session import train

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
    os._exit(EXIT_TERMINATED)  # not through MPI_Finalize, which would wait for peers


def _fail(error: BaseException, rank: int, folder: Path) -> NoReturn:
    exit_code = EXIT_FAILED
    try:
        exit_code, _ = report_failure(folder, failure_of(error, rank))
    finally:
        abort(exit_code)
