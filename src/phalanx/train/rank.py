"""A rank from start to end: whatever goes wrong in it ends all ranks, and is said once."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.comm.world import abort
from phalanx.errors import UserError
from phalanx.launch.detect import Launched, detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.files import read_run, write_failure
from phalanx.records.running import end_run
from phalanx.records.schema import Failure, Outcome
from phalanx.train.config import TrainConfig
from phalanx.train.session import Place, train

EXIT_BAD_INPUT = 2
# What is wrong with the options is found by all ranks at once, before they share a folder in
# which only one could be the first to say so: the others leave rank 0 the time to end them.
ECHO_DELAY_S = 2.0
EXIT_TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):  # no error: a request
    """Another process asked this one to end."""


def run_started_by_phalanx(folder: Path) -> None:
    """A rank that `phalanx train` started; options come from the run's record. Ends the process
    when anything fails."""
    end_with_parent()
    launched = detect(os.environ)
    config = TrainConfig.from_record(read_run(folder).config)
    guarded(config, launched, folder)


def run_started_by_launcher(config: TrainConfig, launched: Launched) -> Path | None:
    """A rank that the user's own mpirun, srun or torchrun started. Rank 0 keeps the run's record,
    in a folder that it names to the others. Ends the process when anything fails.

    Returns: the folder.
    """
    return guarded(config, launched, None)


def guarded(config: TrainConfig, launched: Launched | None, folder: Path | None) -> Path | None:
    """Train; an error is written down and ends all ranks, the first one is shown.

    Returns: the folder of the records.
    """
    rank = launched.rank if launched else 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    place = Place(folder=folder)
    try:
        train(config, launched, place)
    except (Terminated, KeyboardInterrupt) as request:
        place.dump(f"rank {rank} was ended: {type(request).__name__}")
        place.close()
        os._exit(EXIT_TERMINATED)  # not by way of MPI_Finalize, which would wait for the others
    except BaseException as error:  # noqa: BLE001  # whatever it is, the others must not hang
        place.dump(f"{type(error).__name__}: {error}")
        place.close()
        _fail(error, rank, place)
    return place.folder


def _raise_terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _fail(error: BaseException, rank: int, place: Place) -> NoReturn:
    mendable = isinstance(error, UserError)
    message = str(error) if mendable else f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank, mendable=mendable, message=message, traceback=traceback.format_exc()
    )
    if place.folder is None and rank > 0:
        time.sleep(ECHO_DELAY_S)
    if place.folder is None or write_failure(place.folder, failure):
        where = "" if mendable else f"rank {rank}: "
        print(f"phalanx: {where}{message}", file=sys.stderr, flush=True)
        if place.folder and place.keeps_run and (place.folder / "run.json").exists():
            end_run(place.folder, Outcome(status="failed", error=message, rank=rank))
    abort(EXIT_BAD_INPUT if mendable else 1)
