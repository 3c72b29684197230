"""Ways of loading set beside each other, and what is asked of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from phalanx.records.io import READS, Cache, IoCell
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.statistics import Interval

PHRASES = {
    "files": "many small files",
    "tar": "tar shards",
    "npy": "memory maps",
    "hdf5": "HDF5",
    "parquet": "Parquet",
}
LOADERS = {
    "phalanx": "Phalanx",
    "torch": "DataLoader",
    "torch-batched": "DataLoader, whole batches",
    "read": "plain read",
    "read-kept": "plain read, kept",
}
CACHE_LABELS = {"warm": "from memory (warm)", "cold": "from the disk (cold)"}
DEFAULT_FLOOR = 0.9  # where a profile names none
COLD_BELOW = 0.01  # of the files' pages in memory


def compare_loaders(ours: IoPoint, theirs: IoPoint) -> Interval:
    """Return the ratio of samples/s of ours and theirs, flat out, in the same rounds: the median
    over the rounds, and their range."""
    pairs = zip(ours.epochs, theirs.epochs, strict=False)
    gains = [(a.samples / a.total_s) / (b.samples / b.total_s) for a, b in pairs]
    return Interval(estimate=median(gains), low=min(gains), high=max(gains))


def own(points: Iterable[IoPoint]) -> list[IoPoint]:
    return [point for point in points if point.cell.loader == "phalanx"]


def in_cache(points: Iterable[IoPoint], cache: Cache) -> list[IoPoint]:
    return [point for point in points if point.cell.cache == cache]


def caches_of(points: Iterable[IoPoint]) -> list[Cache]:
    return list(dict.fromkeys(point.cell.cache for point in points))


def fastest(points: Sequence[IoPoint]) -> IoPoint | None:
    """Return the point with the most samples/s."""
    return max(points, key=lambda point: point.samples_per_s, default=None)


def best_by(
    points: Iterable[IoPoint], key: Callable[[IoPoint], Any], value: Callable[[IoPoint], float]
) -> dict[Any, IoPoint]:
    """Return the point with the largest value of each key, the first of equals."""
    best: dict[Any, IoPoint] = {}
    for point in points:
        known = best.get(key(point))
        if known is None or value(point) > value(known):
            best[key(point)] = point
    return best


def best_of_each_format(points: Iterable[IoPoint], cache: Cache, ranks: int = 1) -> list[IoPoint]:
    """The fastest of our ways in each format, in the order of the formats, flat out."""
    ours = [point for point in own(in_cache(points, cache)) if point.cell.ranks == ranks]
    return list(best_by(ours, lambda p: p.cell.format, lambda p: p.samples_per_s).values())


def busiest(points: Iterable[IoPoint]) -> dict[str, IoPoint]:
    """Return each format's way with the best utilisation."""
    return best_by(points, lambda point: point.cell.format, busy)


def busy(point: IoPoint) -> float:
    """Return the utilisation; 0 of what was measured flat out."""
    return point.utilisation or 0.0


def rivals(measure: IoMeasure, point: IoPoint, loader: str) -> list[IoPoint]:
    """Ways of another loader over the same data, cache and ranks."""
    cell = point.cell
    wanted = (cell.format, cell.cache, cell.ranks)
    return [
        other
        for other in measure.flat
        if other.cell.loader == loader
        and (other.cell.format, other.cell.cache, other.cell.ranks) == wanted
    ]


def fewest_ranks(measure: IoMeasure) -> int:
    return min((point.cell.ranks for point in measure.points), default=1)


def floor_of(measure: IoMeasure) -> float:
    known = measure.bench.setting.profile.utilisation_floor if measure.bench else None
    return known or DEFAULT_FLOOR


def balance_s(measure: IoMeasure, point: IoPoint) -> float:
    """Compute time of a step below which this way cannot keep up: what a batch takes flat out."""
    assert measure.bench
    return measure.bench.setting.batch_size * point.cell.ranks / point.samples_per_s


def is_cold(point: IoPoint) -> bool | None:
    """Return whether the files were out of memory, or None if unknown."""
    return None if point.resident is None else point.resident <= COLD_BELOW


def how(cell: IoCell) -> str:
    """Readers in words: 2 threads, 4 batches ahead."""
    if cell.loader in READS:
        return "one process"
    if not cell.readers:
        return "no readers"
    one = {"threads": "thread", "processes": "process"}[cell.kind]
    readers = f"{cell.readers} {one if cell.readers == 1 else cell.kind}"
    return f"{readers}, {cell.depth} {'batch' if cell.depth == 1 else 'batches'} ahead"
