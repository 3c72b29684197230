"""The I/O benchmark on one rank: all cells in turn, epoch by epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.bench.io.cells import cells, compute_times
from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.generate import DataLocation, shape_of
from phalanx.bench.io.measure import LoaderBenchmark
from phalanx.bench.plan import turns
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.io import Format, IoCell, IoEndEvent, IoEpochEvent, IoProgressEvent
from phalanx.records.processor_time import peak_memory_bytes


def data_location(config: IoConfig, folder: Path) -> DataLocation:
    """Return the location of the data of a benchmark with records in `folder`."""
    shape = shape_of(config.workload, config.training_profile.samples_per_file)
    return DataLocation(root=(config.data_dir or folder / "data").absolute(), shape=shape)


def measure_on_rank(options: Mapping[str, Any], folder: Path) -> None:
    """Measure, with records in `folder`; a single rank needs no MPI.

    options: `config`, which names the folder of the data, `ranks` and `formats`.
    """
    config, ranks = IoConfig.from_record(options["config"]), options["ranks"]
    location = data_location(config, folder)
    if ranks == 1:
        measure_cells(config, folder, location, options["formats"], 0, 1, barrier=lambda: None)
        return
    from phalanx.comm.join_world import join_world

    world = join_world(timeout_s=config.timeout_s, num_started=ranks, launcher="the launcher")
    measure_cells(
        config, folder, location, options["formats"], world.rank, ranks, barrier=world.barrier
    )
    world.close()


def measure_cells(
    config: IoConfig,
    folder: Path,
    location: DataLocation,
    formats: Sequence[Format],
    rank: int,
    ranks: int,
    *,
    barrier: Callable[[], None],
) -> None:
    """Measure all cells for `ranks`, with records in `folder`."""
    began = time.monotonic()
    writer = EventWriter(rank_file(folder, rank))
    workload = config.workload
    measurement = LoaderBenchmark(
        location,
        workload,
        part=rank,
        barrier=barrier,
        drop_names=config.drop_names,
        kept_batches=max(config.depth) + 1,
    )
    planned_cells = cells(config, ranks, formats)
    planned = [
        (cell, compute_s) for cell in planned_cells for compute_s in compute_times(cell, workload)
    ]
    total = len(planned) * (config.runs + 1)
    for done, (number, (cell, compute_s)) in enumerate(turns(planned, config.runs + 1)):
        if rank == 0:
            doing = describe_cell(cell, compute_s)
            at_s = time.monotonic() - began
            writer.add(IoProgressEvent(at_s=at_s, done=done, total=total, doing=doing))
        measured = measurement.epoch(cell, compute_s, order=number)
        at_s = time.monotonic() - began
        event = IoEpochEvent(
            at_s=at_s, cell=cell, round=number, compute_s=compute_s, **vars(measured)
        )
        writer.add(event)
    measurement.close()
    end = IoEndEvent(at_s=time.monotonic() - began, peak_memory_bytes=peak_memory_bytes())
    writer.add(end)
    writer.close()


def describe_cell(cell: IoCell, compute_s: float) -> str:
    """Describe the cell for the progress line."""
    how = "with compute" if compute_s else "flat out"
    return f"{cell.format}, {cell.cache}, {cell.loader} {how}"
