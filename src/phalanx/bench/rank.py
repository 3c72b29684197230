"""The process of a rank: any failure ends all ranks and is reported once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.rank_benchmark import CollectiveBenchmark
from phalanx.comm.join_world import join_world
from phalanx.comm.world import abort
from phalanx.launch.detect import Launched, detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.failures import EXIT_FAILED, failure_of, report_failure
from phalanx.records.files import read_bench

EXIT_TERMINATED = 128 + signal.SIGTERM


def run_rank(folder: Path) -> None:
    """Measure with the options recorded in `folder`; a failure ends the process."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _end)
    launched = detect(os.environ)
    try:
        _measure(folder, launched)
    except BaseException as error:  # noqa: BLE001  # the peers must not hang
        _fail(error, launched.rank if launched else 0, folder)


def _measure(folder: Path, launched: Launched | None) -> None:
    config = CollectivesConfig.from_record(read_bench(folder).config)
    world = join_world(
        timeout_s=config.timeout_s,
        num_started=launched.world_size if launched else None,
        launcher=launched.launcher if launched else "the launcher",
    )
    session = CollectiveBenchmark(config, folder, world)
    session.run()
    world.close()
    session.close()


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_TERMINATED)  # not MPI_Finalize, which would wait for the peers


def _fail(error: BaseException, rank: int, folder: Path) -> NoReturn:
    exit_code = EXIT_FAILED
    try:
        exit_code, _ = report_failure(folder, failure_of(error, rank))
    finally:
        abort(exit_code)
