"""The I/O benchmark: write the data, run a job for each number of ranks, remove the data.

This process imports neither torch nor MPI, so it survives crashes of the ranks.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.bench.io.cells import min_duration_s
from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.formats.known import unavailable_reason
from phalanx.bench.io.generate import (
    DataLocation,
    check_room,
    free_bytes,
    generate,
    missing_parts,
    remove_parts,
    storage_of,
)
from phalanx.bench.io.page_cache import can_drop_names
from phalanx.bench.io.progress import ProgressLine, RankProgress
from phalanx.bench.io.rank_benchmark import data_location, ranks_folder
from phalanx.errors import UserError
from phalanx.launch.allocation import check_ranks
from phalanx.launch.command import Command, mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.launch.watch import watch
from phalanx.records.closing import closed_on_error, end_io, now
from phalanx.records.files import create, read_io, read_io_events, write_io
from phalanx.records.io import Format, IoBench, IoEndEvent, IoSetting
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.outcome import JobExit, determine_outcome, raise_failure
from phalanx.records.owner import this_process
from phalanx.records.schema import Outcome
from phalanx.report.format import amount
from phalanx.train.environment import describe_environment

RUNS = Path("runs") / "bench"
RANK_PROGRAM = (sys.executable, "-m", "phalanx.bench.io")


def new_folder(config: IoConfig) -> Path:
    """Return the default folder of a benchmark, which is not created."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    return RUNS / f"{moment}-io-{config.training_profile.name}"


def run_io(config: IoConfig, folder: Path, *, command: Sequence[str], console: Console) -> None:
    """Run the benchmark, with records in `folder`.

    Data that it wrote is removed at the end, also after an error, unless `keep` is set.

    Raises: UserError for bad options, RunFailedError when a rank failed or hung, KeyboardInterrupt
            after all ranks were ended; the outcome is always in `io.json`.
    """
    check_ranks(max(config.ranks), os.environ)
    location = data_location(config, folder)
    left_out: dict[str, str] = {f: why for f in config.formats if (why := unavailable_reason(f))}
    formats = [f for f in config.formats if f not in left_out]
    if not formats:
        raise UserError("; ".join(left_out.values()))
    if config.drop_names and not can_drop_names():
        raise UserError("--drop-names needs root, and a /proc/sys that can be written to")
    ours = missing_parts(location, formats, max(config.ranks))
    needed = check_room(location, formats, max(config.ranks))
    _begin(folder, config, command, location, left_out)
    _print_plan(config, location, formats, needed, console)
    try:
        with closed_on_error(partial(end_io, folder)), ProgressLine(console) as line:
            _measure(config, folder, location, formats, line)
        end_io(folder, Outcome(status="completed"))
    finally:
        if not config.keep:
            remove_parts(location, ours)


def _measure(
    config: IoConfig,
    folder: Path,
    location: DataLocation,
    formats: list[Format],
    line: ProgressLine,
) -> None:
    parts, workload = max(config.ranks), config.workload
    silent_s = 2 * config.timeout_s + workload.steps * workload.compute_s
    written = generate(
        location, formats, parts, lambda name, done: line.show(name, f"writing {name}", done)
    )
    write_io(folder, msgspec.structs.replace(read_io(folder), generated=written))
    for ranks in config.ranks:
        records = ranks_folder(folder, ranks)
        records.mkdir()
        followed = RankProgress(records, ranks)
        with Job.start([rank_command(folder, ranks)], records / LAUNCHER_LOG) as job:
            ending = watch(
                job,
                lambda: followed.update(line),  # noqa: B023  # of this turn
                silent_s=silent_s,
                has_launcher=ranks > 1,
            )
        outcome = determine_outcome(
            records, ranks, JobExit(*ending), events=read_io_events, last=IoEndEvent
        )
        raise_failure(records, outcome)


def rank_command(folder: Path, ranks: int) -> Command:
    """Return the command that starts the ranks; a single rank is a plain process."""
    words = [*RANK_PROGRAM, str(folder), str(ranks)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if ranks == 1:
        return Command(words=tuple(words), environment=threads)
    mpi = find_mpi(os.environ)
    command = mpi_job(mpi, ranks, words, cores=usable_cores(), environ=os.environ)
    return Command(
        words=command.words,
        environment={**command.environment, **threads},
        death_signal=command.death_signal,
    )


def _print_plan(
    config: IoConfig, location: DataLocation, formats: list[Format], needed: int, console: Console
) -> None:
    """Print the disk space and the time that the measurement will take."""
    workload = config.workload
    if workload.scaled:
        console.print(f"scaled: {'; '.join(workload.scaled)}", markup=False)
    kept = "kept" if config.keep else "removed at the end"
    what = f"{amount(needed)} to write, {kept}" if needed else "found"
    console.print(
        f"data in {location.root}: {what}; {amount(free_bytes(location.root))} free", markup=False
    )
    console.print(
        f"at least {timedelta(seconds=round(min_duration_s(config, formats)))} of compute, "
        "emulated: the loader has the processor to itself, as beside a GPU",
        markup=False,
    )


def _begin(
    folder: Path,
    config: IoConfig,
    command: Sequence[str],
    location: DataLocation,
    left_out: Mapping[str, str],
) -> None:
    mpi = str(find_mpi(os.environ)) if max(config.ranks) > 1 else None
    bench = IoBench(
        bench=folder.name,
        command=shlex.join(command),
        config=config.as_record(),
        setting=setting_of(config),
        storage=storage_of(location.root),
        environment=describe_environment(mpi),
        outcome=Outcome(status="running"),
        started_at=now(),
        left_out=dict(left_out),
        owner=this_process(),
    )
    try:
        create(folder / "io.json", bench)
    except FileExistsError:
        message = f"--output {folder} already holds the records of a bench: name another"
        raise UserError(message) from None
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error


def setting_of(config: IoConfig) -> IoSetting:
    workload = config.workload
    return IoSetting(
        profile=config.training_profile,
        accelerator=config.chosen_accelerator,
        scaled=list(workload.scaled),
        num_samples=workload.num_samples,
        sample_bytes=workload.sample_bytes,
        batch_size=workload.batch_size,
        steps=workload.steps,
        compute_s=workload.compute_s,
        formats=list(config.formats),
        loaders=list(config.loaders),
        readers=list(config.readers),
        kinds=list(config.kinds),
        depths=list(config.depth),
        caches=list(config.cache),
        ranks=list(config.ranks),
        runs=config.runs,
        drops_names=config.drop_names,
        stall_s=config.stall_ms / 1e3,
    )
