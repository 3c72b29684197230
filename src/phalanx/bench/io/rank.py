"""The process of a rank: any failure ends all ranks and is reported once.

A single rank is a plain process, which needs no MPI.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.rank_benchmark import measure_cells, ranks_folder
from phalanx.launch.detect import detect
from phalanx.launch.orphan import end_with_parent
from phalanx.records.failures import EXIT_FAILED, failure_of, report_failure
from phalanx.records.files import read_io
from phalanx.records.io import Format

EXIT_TERMINATED = 128 + signal.SIGTERM


def run_rank(folder: Path, ranks: int) -> None:
    """Measure with the options recorded in `folder`; a failure ends the process."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _end)
    launched = detect(os.environ) if ranks > 1 else None
    rank = launched.rank if launched else 0
    try:
        bench = read_io(folder)
        formats: list[Format] = [f for f in bench.setting.formats if f not in bench.left_out]
        config = IoConfig.from_record(bench.config)
        if ranks > 1:
            _on_ranks(config, folder, formats, ranks)
        else:
            measure_cells(config, folder, formats, rank=0, ranks=1, barrier=_no_barrier)
    except BaseException as error:  # noqa: BLE001  # the peers must not hang
        _fail(error, rank, ranks_folder(folder, ranks), ranks)


def _on_ranks(config: IoConfig, folder: Path, formats: list[Format], ranks: int) -> None:
    from phalanx.comm.join_world import join_world  # a single process needs no MPI

    world = join_world(timeout_s=config.timeout_s, num_started=ranks, launcher="the launcher")
    measure_cells(config, folder, formats, rank=world.rank, ranks=ranks, barrier=world.barrier)
    world.close()


def _no_barrier() -> None:
    """Barrier of a single rank."""


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_TERMINATED)  # not MPI_Finalize, which would wait for the peers


def _fail(error: BaseException, rank: int, folder: Path, ranks: int) -> NoReturn:
    exit_code = EXIT_FAILED
    try:
        exit_code, _ = report_failure(folder, failure_of(error, rank))
    finally:
        if ranks > 1:
            from phalanx.comm.world import abort

            abort(exit_code)
        os._exit(exit_code)  # does not wait for stuck readers
