"""One sentence a question, about the paths of one collective in one run. Pure.

Each function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.collectives.comparison import (
    CollectiveResults,
    PathComparison,
    fastest_ranges,
    path_comparisons,
    speed_ratio,
)
from phalanx.report.collectives.measures import CollectivePoint
from phalanx.report.finding_sentences import sentence
from phalanx.report.format import duration, joined, percent, size
from phalanx.report.statistics import Interval

TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
FLOOR_FROM_BYTES = 2**20
HEADLINE_BYTES = 2**20


def best_against_rest(results: CollectiveResults) -> str | None:
    pairs = _selected_sizes(path_comparisons(results))
    if not pairs:
        return None
    parts = [
        f"{at_size(pair.num_bytes)}{pair.ours.label} takes {duration(pair.ours.median_s)}, "
        f"{comparison_text(pair, comparisons=len(pairs))} ({duration(pair.theirs.median_s)})"
        for pair in pairs
    ]
    return sentence("; ".join(parts))


def headline_comparison(results: CollectiveResults) -> PathComparison | None:
    """The comparison at 1 MB, or at the size nearest to it."""
    return min(
        path_comparisons(results), key=lambda d: abs(d.num_bytes - HEADLINE_BYTES), default=None
    )


def comparison_text(comparison: PathComparison, *, comparisons: int = 1) -> str:
    """5.1 times (4.6 to 5.7) as fast as Open MPI, or that it cannot be told."""
    theirs = comparison.theirs.label
    interval = speed_ratio(comparison.ours, comparison.theirs, comparisons=comparisons)
    if interval is None:
        return f"not told from {theirs} by so few calls"
    match interval.verdict(1):
        case "higher":
            return f"{ratio_words(interval)} as fast as {theirs}"
        case "lower":
            return f"slower than {theirs}, which is {ratio_words(interval.inverse)} as fast"
        case _:
            return f"not told from {theirs}"


def ratio_words(interval: Interval) -> str:
    digits = 1 if interval.estimate >= 1.5 else 2
    low, high = f"{interval.low:.{digits}f}", f"{interval.high:.{digits}f}"
    return f"{interval.estimate:.{digits}f} times ({low} to {high})"


def crossings(results: CollectiveResults) -> str | None:
    """Return the fastest path for each range of sizes."""
    if results.sizes == (0,) or len({point.path for point in results.points}) < 2:
        return None
    parts = fastest_ranges(results)
    if len(parts) == 1:
        label = parts[0][0]
        every = f"{label} is the fastest at every size"
        return sentence(every if label else "which path is the fastest can be told at no size")
    texts = [f"{label} {_span(low, high)}" for label, low, high in parts if label]
    unknown = [_span(low, high) for label, low, high in parts if not label]
    text = f"the fastest is {joined(texts)}"
    return sentence(f"{text}; {joined(unknown)} it cannot be told" if unknown else text)


def private_tensors(results: CollectiveResults) -> str | None:
    """torch.distributed on our backend against its others, tensors where PyTorch put them."""
    ours = {p.num_bytes: p for p in results.points if p.path == "torch"}
    gloo = {p.num_bytes: p for p in results.points if p.path == "gloo"}
    both = sorted(set(ours) & set(gloo))
    found = sorted(
        (PathComparison(num_bytes=n, ours=ours[n], theirs=gloo[n]) for n in both), key=_gain
    )
    if not found:
        return None
    least, most = (comparison_text(pair, comparisons=len(found)) for pair in (found[0], found[-1]))
    text = f"on backend mpi dist.{results.collective} is {least}"
    if len(found) == 1:
        return sentence(text)
    return sentence(
        f"{text} at {size(found[0].num_bytes)}, where it gains least, and {most} at "
        f"{size(found[-1].num_bytes)}, where it gains most"
    )


def distance_from_floor(results: CollectiveResults) -> str | None:
    """The fastest path, of Phalanx if it has one, against what memory and flags allow."""
    sizes = [n for n in results.sizes if n >= FLOOR_FROM_BYTES] or results.sizes[-1:]
    best = [_fastest_of_ours(results, n) for n in sizes]
    found = [(point.times_floor, point) for point in best if point.times_floor is not None]
    if not found:
        return None
    low, high = min(found, key=_ratio), max(found, key=_ratio)
    labels = {point.label for point in best}
    what = labels.pop() if len(labels) == 1 else "the fastest path of Phalanx"
    if not high[1].num_bytes:
        return sentence(f"{what} takes {high[0]:.2f} times the floor")
    reached = f"{percent(1 / high[0], 0)} of the floor's speed"
    if len(found) == 1:
        where = f"at {size(high[1].num_bytes)}"
        return sentence(f"{where} {what} takes {high[0]:.2f} times the floor: {reached}")
    return sentence(
        f"from {size(best[0].num_bytes)} up {what} takes {low[0]:.2f} to {high[0]:.2f} times the "
        f"floor (the most at {size(high[1].num_bytes)}: {reached})"
    )


def _fastest_of_ours(results: CollectiveResults, num_bytes: int) -> CollectivePoint:
    points = results.at(num_bytes)
    return next((point for point in points if point.is_ours), points[0])


def _selected_sizes(found: Sequence[PathComparison]) -> list[PathComparison]:
    """Return the comparisons at the smallest, the largest and the TOLD_SIZES."""
    if not found:
        return []
    ends = {found[0].num_bytes, found[-1].num_bytes}
    return [pair for pair in found if pair.num_bytes in ends or pair.num_bytes in TOLD_SIZES]


def _gain(comparison: PathComparison) -> float:
    return comparison.gain


def _ratio(pair: tuple[float, CollectivePoint]) -> float:
    return pair[0]


def at_size(num_bytes: int) -> str:
    return f"at {size(num_bytes)} " if num_bytes else ""


def of_size(num_bytes: int) -> str:
    return f" of {size(num_bytes)}" if num_bytes else ""


def _span(low: int, high: int) -> str:
    return f"at {size(low)}" if low == high else f"from {size(low)} to {size(high)}"
