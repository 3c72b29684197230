"""The I/O benchmark on one rank: which ways to load are measured, and all in turn by epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from phalanx.bench.call_schedule import turns
from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.generate import DataLocation, shape_of
from phalanx.bench.io.measure import LoaderBenchmark
from phalanx.bench.io.scaling import Workload
from phalanx.bench.ranks import RankRecords
from phalanx.records.io import (
    READS,
    Format,
    IoCell,
    IoEndEvent,
    IoEpochEvent,
    IoProgressEvent,
    Loader,
)
from phalanx.records.processor_time import peak_memory_bytes

PACKED: tuple[Format, ...] = ("tar", "npy")
TORCH: tuple[Loader, ...] = ("torch", "torch-batched")


def cells(config: IoConfig, ranks: int, formats: Sequence[Format]) -> list[IoCell]:
    """Return all cells for `ranks`. A plain read has no readers; PyTorch's are processes."""
    ways = product(
        config.cache, formats, config.loaders, config.kinds, config.readers, config.depth
    )
    made: dict[IoCell, None] = {}
    for cache, format_, loader, kind, number, depth in ways:
        if loader in TORCH and format_ not in PACKED:
            continue
        readers = 0 if loader in READS else number
        cell = IoCell(
            format=format_,
            loader=loader,
            kind="threads" if not readers else kind if loader == "phalanx" else "processes",
            readers=readers,
            depth=depth if readers else 0,
            cache=cache,
            ranks=ranks,
        )
        made[cell] = None
    return list(made)


def compute_times(cell: IoCell, workload: Workload) -> tuple[float, ...]:
    """Return the compute times per step to measure: 0 (flat out) and the profile's.

    The other loaders are measured flat out only."""
    return (0.0, workload.compute_s) if cell.loader == "phalanx" else (0.0,)


def min_duration_s(config: IoConfig, formats: Sequence[Format]) -> float:
    """Return the total emulated compute time, a lower bound of the duration."""
    workload = config.workload
    paced = sum(
        sum(compute_times(cell, workload))
        for ranks in config.ranks
        for cell in cells(config, ranks, formats)
    )
    return paced * (config.runs + 1) * workload.steps


def data_location(config: IoConfig, folder: Path) -> DataLocation:
    """Return the location of the data of a benchmark with records in `folder`."""
    shape = shape_of(config.workload, config.training_profile.samples_per_file)
    return DataLocation(root=(config.data_dir or folder / "data").absolute(), shape=shape)


def measure_on_rank(options: Mapping[str, Any], folder: Path) -> None:
    """Measure all cells, with records in `folder`; a single rank needs no MPI.

    options: `config`, which names the folder of the data, `ranks` and `formats`.
    """
    config, ranks = IoConfig.from_record(options["config"]), options["ranks"]
    world = None
    if ranks > 1:
        from phalanx.comm.join_world import join_world

        world = join_world(timeout_s=config.timeout_s)
    rank, workload = 0 if world is None else world.rank, config.workload
    records = RankRecords(folder, rank)
    measurement = LoaderBenchmark(
        data_location(config, folder),
        workload,
        part=rank,
        barrier=(lambda: None) if world is None else world.barrier,
        drop_names=config.drop_names,
        kept_batches=max(config.depth) + 1,
    )
    wanted = [
        (cell, compute_s)
        for cell in cells(config, ranks, options["formats"])
        for compute_s in compute_times(cell, workload)
    ]
    total = len(wanted) * (config.runs + 1)
    for done, (number, (cell, compute_s)) in enumerate(turns(wanted, config.runs + 1)):
        how = "with compute" if compute_s else "flat out"
        doing = f"{cell.format}, {cell.cache}, {cell.loader} {how}"
        records.announce(IoProgressEvent, done, total, doing)
        measured = measurement.epoch(cell, compute_s, order=number)
        records.add(IoEpochEvent, cell=cell, round=number, compute_s=compute_s, **vars(measured))
    measurement.close()
    records.add(IoEndEvent, peak_memory_bytes=peak_memory_bytes())
    records.close()
    if world is not None:
        world.close()
