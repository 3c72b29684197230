"""The job of a benchmark of collectives: start the ranks, follow and record them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.ranks import recorded_job, run_ranks
from phalanx.errors import RunFailedError
from phalanx.jobs.command import Command
from phalanx.jobs.job import Job
from phalanx.jobs.ranks import RankRequest
from phalanx.jobs.record import default_folder, opening_fields, this_command
from phalanx.records.collectives import Bench, BenchSetting
from phalanx.report.format import size

CROWD_LOG = "crowd.log"
BUSY_PROGRAM = (sys.executable, "-I", "-S", "-c", "while True: pass")


def new_folder(config: CollectivesConfig) -> Path:
    """Return the default folder of a benchmark, which is not created."""
    return default_folder("bench", f"collectives-{config.ranks}")


def run_bench(
    config: CollectivesConfig,
    folder: Path,
    *,
    console: Console,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the benchmark, with records in `folder`.

    command: that makes it again; None: that of this process. environment: variables of the ranks.
    Raises: UserError for bad options, RunFailedError when a rank failed or hung, KeyboardInterrupt
            after all ranks were ended; the outcome is always in `bench.json`.
    """
    ranks = RankRequest(ranks=config.ranks).complete(None)
    setting = BenchSetting(
        ranks=config.ranks,
        collectives=list(config.chosen_collectives),
        paths=list(config.chosen_paths),
        sizes_bytes=list(config.sizes_bytes),
        dtype=config.dtype,
        op=config.op,
        crowd=config.crowd,
    )
    opening = opening_fields(command or this_command(), ranks.mpi)
    record = Bench(bench=folder.name, config=config.as_record(), setting=setting, **opening)
    with recorded_job(folder, record, console) as line, crowd(config.crowd, folder / CROWD_LOG):
        console.print(f"{config.title}\nrecords in {folder}", markup=False)
        run_ranks(
            "phalanx.bench",
            config.as_record(),
            folder,
            ranks=ranks,
            line=line,
            words=sized,
            environment=environment,
        )


def sized(doing: str) -> str:
    """Return a case with its bytes in words; of a barrier without its 0."""
    what, _, number = doing.rpartition(" ")
    if not number.isdecimal():
        return doing
    return f"{what} {size(int(number))}" if int(number) else what


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
