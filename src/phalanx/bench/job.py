"""The job of a benchmark: start the ranks, follow their records, record the outcome.

This process imports neither torch nor MPI, so it starts at once and survives crashes of the ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.ranks import run_ranks
from phalanx.errors import RunFailedError
from phalanx.jobs.allocation import allocation, check_ranks, max_local_ranks
from phalanx.jobs.command import Command
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.record import (
    begin_record,
    closed_on_error,
    default_folder,
    end_record,
    opening_fields,
)
from phalanx.records.collectives import Bench, BenchSetting, ProgressEvent
from phalanx.records.events import Event
from phalanx.records.schema import Outcome
from phalanx.report.format import size

CROWD_LOG = "crowd.log"
BUSY_PROGRAM = (sys.executable, "-I", "-S", "-c", "while True: pass")


def new_folder(config: CollectivesConfig) -> Path:
    """Return the default folder of a benchmark, which is not created."""
    return default_folder("bench", f"collectives-{config.ranks}")


def run_bench(
    config: CollectivesConfig, folder: Path, *, command: Sequence[str], console: Console
) -> None:
    """Run the benchmark, with records in `folder`.

    Raises: UserError for bad options, RunFailedError when a rank failed or hung, KeyboardInterrupt
            after all ranks were ended; the outcome is always in `bench.json`.
    """
    check_ranks(config.ranks, os.environ)
    mpi = find_mpi(os.environ)
    setting = setting_of(config)
    opening = opening_fields(command, mpi)
    begin_record(
        folder, Bench(bench=folder.name, config=config.as_record(), setting=setting, **opening)
    )
    console.print(f"{config.title}\nrecords in {folder}", markup=False)
    nodes = allocation(os.environ)
    local_ranks = max_local_ranks(config.ranks, nodes.slots)

    with closed_on_error(folder, Bench):
        with crowd(config.crowd, folder / CROWD_LOG), LiveLine(console) as line:
            run_ranks(
                "phalanx.bench",
                config.as_record(),
                folder,
                ranks=config.ranks,
                threads=None if nodes.has_others else max(1, usable_cores() // local_ranks),
                mpi=mpi,
                show=partial(show_progress, line),
            )
        end_record(folder, Bench, Outcome(status="completed"))


def show_progress(line: LiveLine, event: Event) -> None:
    """Show the case that rank 0 announces."""
    if isinstance(event, ProgressEvent):
        what, _, number = event.doing.rpartition(" ")
        sized = number.isdecimal() and int(number)
        doing = f"{what} {size(int(number))}" if sized else event.doing.removesuffix(" 0")
        line.show_phase("", doing, event.done / event.total)


def setting_of(config: CollectivesConfig) -> BenchSetting:
    return BenchSetting(
        ranks=config.ranks,
        collectives=list(config.chosen_collectives),
        paths=list(config.chosen_paths),
        sizes_bytes=list(config.sizes_bytes),
        dtype=config.dtype,
        op=config.op,
        crowd=config.crowd,
    )


@contextmanager
def crowd(num_processes: int, log: Path) -> Iterator[None]:
    """Keep `num_processes` cores busy during the block.

    Raises: RunFailedError when one of the processes ended early.
    """
    if not num_processes:
        yield
        return
    with Job.start([Command(words=BUSY_PROGRAM)] * num_processes, log) as job:
        yield
        if job.poll() is not None:
            raise RunFailedError(f"a busy process of --crowd ended early; its output: {log}")
