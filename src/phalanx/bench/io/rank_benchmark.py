"""The I/O benchmark on one rank: all cells in turn, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.bench.io.cells import cells, compute_times
from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.generate import DataLocation, shape_of
from phalanx.bench.io.measure import LoaderBenchmark
from phalanx.bench.plan import turns
from phalanx.bench.ranks import RankRecords
from phalanx.records.io import Format, IoEndEvent, IoEpochEvent, IoProgressEvent
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
    if ranks == 1:
        measure_cells(config, folder, options["formats"], 0, 1, barrier=lambda: None)
        return
    from phalanx.comm.join_world import join_world

    world = join_world(timeout_s=config.timeout_s)
    measure_cells(config, folder, options["formats"], world.rank, ranks, barrier=world.barrier)
    world.close()


def measure_cells(
    config: IoConfig,
    folder: Path,
    formats: Sequence[Format],
    rank: int,
    ranks: int,
    *,
    barrier: Callable[[], None],
) -> None:
    """Measure all cells for `ranks`, with records in `folder`."""
    records, workload = RankRecords(folder, rank), config.workload
    measurement = LoaderBenchmark(
        data_location(config, folder),
        workload,
        part=rank,
        barrier=barrier,
        drop_names=config.drop_names,
        kept_batches=max(config.depth) + 1,
    )
    planned = [
        (cell, compute_s)
        for cell in cells(config, ranks, formats)
        for compute_s in compute_times(cell, workload)
    ]
    total = len(planned) * (config.runs + 1)
    for done, (number, (cell, compute_s)) in enumerate(turns(planned, config.runs + 1)):
        how = "with compute" if compute_s else "flat out"
        doing = f"{cell.format}, {cell.cache}, {cell.loader} {how}"
        records.announce(IoProgressEvent, done, total, doing)
        measured = measurement.epoch(cell, compute_s, order=number)
        records.add(IoEpochEvent, cell=cell, round=number, compute_s=compute_s, **vars(measured))
    measurement.close()
    records.add(IoEndEvent, peak_memory_bytes=peak_memory_bytes())
    records.close()
