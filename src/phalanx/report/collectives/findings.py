"""Findings of measured collectives: what a reader should take away. Pure.

A function of one collective of a run returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.records.collectives import Collective
from phalanx.report.collectives.comparison import (
    FAR,
    PHRASES,
    CollectiveResults,
    PathComparison,
    fastest_ranges,
    path_comparisons,
    speed_ratio,
)
from phalanx.report.collectives.measures import BenchMeasure, Obstacle
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.format import duration, joined, sentence, size
from phalanx.report.statistics import Interval

TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
HEADLINE_BYTES = 2**20
QUIET_PER_S = 300  # a quiet machine of two cores showed 210 to 240, a busy one 350 to 1,200


def findings(
    all_results: Sequence[CollectiveResults], measures: Sequence[BenchMeasure]
) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    topics = [
        make_topic(title, rule, [(results.title, make(results)) for results in all_results])
        for title, rule, make in _QUESTIONS
    ]
    return told(
        _all_libraries(all_results),
        *topics,
        _correctness(all_results),
        _disturbance(measures),
        _missing(measures),
        _not_completed(measures),
    )


def headline(all_results: Sequence[CollectiveResults]) -> str:
    """The one sentence that the page begins with: ours against the best of all others."""
    found = [
        (results, comparison)
        for results in all_results
        for comparison in [headline_comparison(results)]
        if comparison
    ]
    if not found:
        return "Nothing to compare was measured yet" if not all_results else _alone(all_results[0])
    # The headline shows the fastest rival of all MPI libraries.
    first = all_results[0].collective
    rivals = [pair for pair in found if pair[0].collective == first] or found[:1]
    results, comparison = min(rivals, key=lambda pair: pair[1].gain)
    what, verdict = (
        PHRASES[results.collective],
        comparison_text(comparison, comparisons=len(rivals)),
    )
    if comparison.num_bytes:
        what = f"{what} of {size(comparison.num_bytes)}"
    return sentence(f"{what} {results.where}: {comparison.ours.label} is {verdict}").rstrip(".")


def _correctness(all_results: Sequence[CollectiveResults]) -> Topic:
    """Report wrong results, or that there were none."""
    points = [(results, point) for results in all_results for point in results.points]
    calls = sum(len(point.times_s) for _, point in points)
    sentences = [
        (results.title, sentence(f"{p.label}{of_size(p.num_bytes)}: {p.wrong:,} wrong elements"))
        for results, p in points
        if p.wrong
    ]
    if not sentences and calls:
        text = f"All results of {calls:,} timed calls were right, every element on every rank."
        sentences = [("", text)]
    return make_topic(
        "Correctness",
        "Buffers are rewritten before every call, results checked after it.",
        sentences,
    )


def _disturbance(measures: Sequence[BenchMeasure]) -> Topic:
    """Report other load on the machine during the measurement."""
    sentences = []
    for measure in measures:
        lost, bench = measure.preempted_per_s, measure.bench
        crowded = bench is not None and (
            bench.setting.crowd > 0 or bench.setting.ranks > bench.environment.cores
        )
        if lost is not None and lost > QUIET_PER_S and not crowded:
            text = (
                f"Ranks lost their core {lost:,.0f} times a second: something else was at work, "
                "and these are not the numbers of a quiet machine."
            )
            sentences.append((measure.mpi, text))
    return make_topic(
        "Disturbance",
        f"Said from {QUIET_PER_S} times a second up, where every rank has a core of its own.",
        sentences,
    )


def _missing(measures: Sequence[BenchMeasure]) -> Topic:
    """List what could not be measured; once where it holds for every run."""
    met: dict[Obstacle, list[str]] = {}
    for measure in measures:
        for obstacle in measure.obstacles:
            met.setdefault(obstacle, []).append(measure.mpi)
    sentences = []
    for obstacle, runs in met.items():
        where = f" ({joined(runs)})" if len(runs) < len(measures) else ""
        reason = obstacle.reason.rstrip(".")
        text = sentence(f"{PHRASES[obstacle.collective]}: {reason}{where}")
        sentences.append((obstacle.label, text))
    return make_topic(
        "Not measured",
        "Paths that were asked for and cannot be used here, with the reason.",
        sentences,
    )


def _all_libraries(all_results: Sequence[CollectiveResults]) -> Topic:
    """Return the smallest lead over any MPI library at each size, where several were measured."""
    groups: dict[tuple[Collective, int], list[CollectiveResults]] = {}
    for results in all_results:
        groups.setdefault((results.collective, results.ranks), []).append(results)
    sentences = []
    for (collective, ranks), group in groups.items():
        if len({results.measure.mpi for results in group}) > 1:
            found = [comparison for results in group for comparison in path_comparisons(results)]
            sizes = sorted({comparison.num_bytes for comparison in found})
            hardest = [min((d for d in found if d.num_bytes == n), key=_gain) for n in sizes]
            label = f"{sentence(PHRASES[collective]).rstrip('.')}, {ranks} ranks"
            parts = [
                f"{at_size(pair.num_bytes)}{comparison_text(pair, comparisons=len(hardest))}"
                for pair in hardest
            ]
            sentences.append((label, sentence("; ".join(parts))))
    return make_topic(
        "All libraries together",
        "At each size the smallest lead of Phalanx, each within the run of that library.",
        sentences,
    )


def _gain(comparison: PathComparison) -> float:
    return comparison.gain


def _not_completed(measures: Sequence[BenchMeasure]) -> Topic:
    sentences = [
        (measure.name, sentence(f"{measure.status}: {measure.error or '–'}"))
        for measure in measures
        if measure.status != "completed"
    ]
    return make_topic(
        "Not completed",
        "What these measured before they ended is shown all the same.",
        sentences,
    )


def _alone(results: CollectiveResults) -> str:
    fastest = results.at(results.sizes[-1])[0]
    what = f"{PHRASES[results.collective]}{of_size(fastest.num_bytes)} {results.where}"
    return sentence(f"{what}: {duration(fastest.median_s)} with {fastest.label}").rstrip(".")


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


def _selected_sizes(found: Sequence[PathComparison]) -> list[PathComparison]:
    """Return the comparisons at the smallest, the largest and the TOLD_SIZES."""
    if not found:
        return []
    ends = {found[0].num_bytes, found[-1].num_bytes}
    return [pair for pair in found if pair.num_bytes in ends or pair.num_bytes in TOLD_SIZES]


def at_size(num_bytes: int) -> str:
    return f"at {size(num_bytes)} " if num_bytes else ""


def of_size(num_bytes: int) -> str:
    return f" of {size(num_bytes)}" if num_bytes else ""


def _span(low: int, high: int) -> str:
    return f"at {size(low)}" if low == high else f"from {size(low)} to {size(high)}"


_QUESTIONS: tuple[tuple[str, str, Callable[[CollectiveResults], str | None]], ...] = (
    (
        "Phalanx against the rest",
        "The fastest path of Phalanx and the fastest of the others at each size, by their medians "
        "in the same run.",
        best_against_rest,
    ),
    (
        "Who wins where",
        "The path with the smallest median at each size that was measured, where the interval of "
        f"its ratio to every other says so; what takes more than {FAR:g} times as long is slower "
        "without one.",
        crossings,
    ),
    (
        "Unmodified PyTorch scripts",
        "torch.distributed on tensors where PyTorch put them, backend mpi against Gloo.",
        private_tensors,
    ),
)
