"""One sentence a question, computed from one measurement of loading. Pure.

Each function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.io import Cache, Loader
from phalanx.report.finding_sentences import sentence
from phalanx.report.format import amount, duration, joined, percent, three_digits
from phalanx.report.io.comparison import (
    LOADERS,
    PHRASES,
    LoaderComparison,
    balance_s,
    best_of_each_format,
    compare_loaders,
    fastest,
    fewest_ranks,
    floor_of,
    how,
    in_cache,
    is_cold,
    own,
    rivals,
)
from phalanx.report.io.measures import IoMeasure, IoPoint

SAME_WITHIN = 0.05


def fastest_format(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the fastest format, and the rates of the others relative to it."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    best = fastest(points)
    if best is None or len(points) < 2:
        return None
    others = sorted(
        (point for point in points if point is not best), key=lambda p: -p.samples_per_s
    )
    texts = [
        f"{factor(best.samples_per_s / p.samples_per_s)} those of {PHRASES[p.cell.format]}"
        for p in others
    ]
    return sentence(
        f"most come from {PHRASES[best.cell.format]}, {rate(best)} with {how(best.cell)}: "
        f"{joined(texts)}"
    )


def small_files(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the gain of packed formats over many small files."""
    points = {p.cell.format: p for p in best_of_each_format(measure.flat, cache)}
    packed = [points[name] for name in ("tar", "npy") if name in points]
    files = points.get("files")
    if files is None or not packed:
        return None
    texts = [
        f"{PHRASES[d.ours.cell.format]} {d.gain:.1f} times ({d.low:.1f} to {d.high:.1f})"
        for d in (compare_loaders(point, files) for point in packed)
    ]
    return sentence(f"against many small files, {joined(texts)} the samples/s")


def utilisation(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the formats that keep the accelerator busy, and those that do not."""
    floor = floor_of(measure)
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    if not points or measure.bench is None:
        return None
    best: dict[str, IoPoint] = {}
    for point in points:
        known = best.get(point.cell.format)
        if known is None or (point.utilisation or 0) > (known.utilisation or 0):
            best[point.cell.format] = point
    reach = [p for p in best.values() if (p.utilisation or 0) >= floor]
    fail = [p for p in best.values() if (p.utilisation or 0) < floor]
    parts = []
    if reach:
        parts.append(f"{_utilised(reach)} reach the floor of {percent(floor, 0)}")
    if fail:
        parts.append(f"{_utilised(fail)} stay below {'it' if reach else percent(floor, 0)}")
    return sentence("; ".join(parts))


def _utilised(points: Sequence[IoPoint]) -> str:
    return joined([f"{PHRASES[p.cell.format]} ({percent(p.utilisation or 0, 1)})" for p in points])


def bound(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the compute time from which the fastest way keeps up, relative to the profile's."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    best = fastest(points)
    if best is None or measure.bench is None:
        return None
    setting, least_s = measure.bench.setting, balance_s(measure, best)
    margin = setting.compute_s / least_s
    which = "compute-bound" if margin >= 1 else "I/O-bound"
    far = f"{margin:.1f} times what it takes" if margin >= 1 else f"{percent(margin, 0)} of that"
    return sentence(
        f"a batch of {amount(setting.batch_size * setting.sample_bytes)} takes "
        f"{duration(least_s)} from {PHRASES[best.cell.format]}; a step computes "
        f"{duration(setting.compute_s)}, {far}: {which}"
    )


def against_read(measure: IoMeasure, cache: Cache) -> str | None:
    """The loader's own cost over a plain read of the same files."""
    texts = times_of(measure, cache, "read")
    if not texts:
        return None
    return sentence(f"times the time of one process that only reads the files: {joined(texts)}")


def against_kept_read(measure: IoMeasure, cache: Cache) -> str | None:
    """The same over a read that leaves the bytes in as much memory as batches take."""
    texts = times_of(measure, cache, "read-kept")
    if not texts:
        return None
    return sentence(f"and of one that keeps them as batches are kept: {joined(texts)}")


def times_of(measure: IoMeasure, cache: Cache, loader: Loader) -> list[str]:
    """Return the time of each format's best way relative to a plain read."""
    return [
        f"{PHRASES[point.cell.format]} {1 / compare_loaders(point, other).gain:.2f}"
        for point in best_of_each_format(measure.flat, cache, fewest_ranks(measure))
        for other in rivals(measure, point, loader)[:1]
    ]


def against_torch(measure: IoMeasure, cache: Cache, loader: str = "torch") -> str | None:
    """Compare with PyTorch's DataLoader on the same shards, each at its best."""
    texts = []
    for point in best_of_each_format(measure.flat, cache, fewest_ranks(measure)):
        best = fastest(rivals(measure, point, loader))
        if best is not None:
            found = compare_loaders(point, best)
            texts.append(
                f"{comparison_text(found)} on {PHRASES[point.cell.format]} ({rate(point)} with "
                f"{how(point.cell)} against {rate(best)} with {how(best.cell)})"
            )
    return sentence(f"Phalanx is {joined(texts)}") if texts else None


def comparison_text(found: LoaderComparison) -> str:
    theirs = LOADERS[found.theirs.cell.loader]
    if abs(found.gain - 1) <= SAME_WITHIN:
        return f"as fast as {theirs}"
    if found.gain > 1:
        return f"{found.gain:.1f} times as fast as {theirs}"
    return f"{1 / found.gain:.1f} times slower than {theirs}"


def first_batch(measure: IoMeasure, cache: Cache) -> str | None:
    points = own(in_cache(measure.paced, cache)) or own(in_cache(measure.flat, cache))
    if not points:
        return None
    least, most = min(points, key=_first), max(points, key=_first)
    text = (
        f"the first batch is there after {duration(least.first_s)} ({PHRASES[least.cell.format]})"
    )
    if most.cell.format != least.cell.format:
        text += f" to {duration(most.first_s)} ({PHRASES[most.cell.format]})"
    return sentence(text)


def _first(point: IoPoint) -> float:
    return point.first_s


def weak_scaling(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the rate of all ranks together, relative to that of the fewest ranks."""
    texts = []
    formats = list(dict.fromkeys(p.cell.format for p in own(measure.flat)))
    for name in formats:
        points = [p for p in own(in_cache(measure.flat, cache)) if p.cell.format == name]
        by_ranks = {p.cell.ranks: p for p in sorted(points, key=lambda p: p.samples_per_s)}
        low, high = min(by_ranks, default=1), max(by_ranks, default=1)
        if low < high:
            gain = by_ranks[high].samples_per_s / by_ranks[low].samples_per_s
            texts.append(f"{PHRASES[name]} {gain:.2f} times with {high / low:g} times the ranks")
    return sentence(f"together ranks read {joined(texts)}") if texts else None


def cold_cache(measure: IoMeasure) -> str | None:
    """Return a sentence on how cold the cold epochs were."""
    points = in_cache(measure.points, "cold")
    if not points:
        return None
    cold = [is_cold(point) for point in points]
    if all(one is None for one in cold):
        return "Whether the files were out of memory could not be verified here."
    if all(cold):
        drops_names = measure.bench is not None and measure.bench.setting.drops_names
        names = (
            "; their names and inodes were forgotten, too"
            if drops_names
            else ("; their names and inodes may have been")
        )
        return f"Before each cold epoch no page of the files was in memory (mincore){names}."
    worst = max(points, key=lambda p: p.resident or 0.0)
    return sentence(
        f"cold is not cold here: up to {percent(worst.resident or 0, 0)} of the pages of "
        f"{PHRASES[worst.cell.format]} stayed in memory although the system was asked to drop them"
    )


def rate(point: IoPoint) -> str:
    return f"{three_digits(point.samples_per_s)} samples/s"


def factor(value: float) -> str:
    return f"{value:.2f} times" if value < 10 else f"{value:.0f} times"
