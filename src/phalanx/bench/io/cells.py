"""Plan the data-loading measurements and their order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.scaling import Workload
from phalanx.records.io import READS, Format, IoCell, Loader

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
