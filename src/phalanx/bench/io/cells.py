"""Plan the data-loading measurements and their order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.scaling import Workload
from phalanx.records.io import READS, Format, IoCell, Loader

PACKED: tuple[Format, ...] = ("tar", "npy")
TORCH: tuple[Loader, ...] = ("torch", "torch-batched")


def cells(config: IoConfig, ranks: int, formats: Sequence[Format]) -> list[IoCell]:
    """Return all cells for `ranks`. A plain read has no readers; PyTorch's are processes."""
    made: dict[IoCell, None] = {}
    for cache in config.cache:
        for format_ in formats:
            for loader in config.loaders:
                if loader in TORCH and format_ not in PACKED:
                    continue
                for kind in config.kinds if loader == "phalanx" else ("processes",):
                    for readers in config.readers if loader not in READS else (0,):
                        for depth in config.depth if readers else (0,):
                            cell = IoCell(
                                format=format_,
                                loader=loader,
                                kind=kind if readers else "threads",
                                readers=readers,
                                depth=depth,
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
    paced = [
        cell
        for ranks in config.ranks
        for cell in cells(config, ranks, formats)
        if cell.loader == "phalanx"
    ]
    return len(paced) * (config.runs + 1) * workload.steps * workload.compute_s
