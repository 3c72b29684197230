"""The I/O benchmark: write the data, run a job for each number of ranks, remove the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.formats import unavailable_reason
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
from phalanx.bench.io.rank_benchmark import data_location, min_duration_s
from phalanx.bench.ranks import recorded_job, run_ranks
from phalanx.errors import UserError
from phalanx.jobs.allocation import check_ranks
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.ranks import RankRequest
from phalanx.jobs.record import default_folder, opening_fields
from phalanx.records.files import read_io, write_record
from phalanx.records.io import Format, IoBench, IoSetting
from phalanx.report.format import amount

LONGEST_S = 10**12
"""Seconds of a duration that can be shown."""


def new_folder(config: IoConfig) -> Path:
    """Return the default folder of a benchmark, which is not created."""
    return default_folder("bench", f"io-{config.training_profile.name}")


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
        raise UserError("--drop-names needs root and a writable /proc/sys")
    ours = missing_parts(location, formats, max(config.ranks))
    needed = check_room(location, ours)
    record = IoBench(
        bench=folder.name,
        config=config.as_record(),
        setting=setting_of(config),
        storage=storage_of(location.root),
        left_out=left_out,
        **opening_fields(command, find_mpi(os.environ) if max(config.ranks) > 1 else None),
    )
    try:
        with recorded_job(folder, record, console) as line:
            _print_needs(config, location, formats, needed, console)
            _measure(config, folder, location, formats, line)
    finally:
        if not config.keep:
            remove_parts(location, ours)


def _measure(
    config: IoConfig, folder: Path, location: DataLocation, formats: list[Format], line: LiveLine
) -> None:
    written = generate(
        location,
        formats,
        max(config.ranks),
        lambda name, done: line.show_phase(name, f"writing {name}", done),
    )
    write_record(folder, msgspec.structs.replace(read_io(folder), generated=written))
    for ranks in config.ranks:
        on = "" if ranks == 1 else f"{ranks} ranks: "
        run_ranks(
            "phalanx.bench.io",
            {
                "config": config.as_record() | {"data_dir": str(location.root)},
                "ranks": ranks,
                "formats": formats,
            },
            folder / f"ranks-{ranks}",
            ranks=RankRequest(ranks=ranks, threads=1, is_alone=ranks == 1),
            line=line,
            phase=f"ranks {ranks}",
            words=on.__add__,
        )


def _print_needs(
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
    compute_s = min(round(min_duration_s(config, formats)), LONGEST_S)
    console.print(
        f"at least {timedelta(seconds=compute_s)} of emulated compute: the loader has the "
        "processor to itself, as with a GPU",
        markup=False,
    )


def setting_of(config: IoConfig) -> IoSetting:
    workload = {**config.workload._asdict(), "scaled": list(config.workload.scaled)}
    return IoSetting(
        profile=config.training_profile,
        accelerator=config.chosen_accelerator,
        **workload,
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
