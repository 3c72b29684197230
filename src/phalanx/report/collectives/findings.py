"""Findings of measured collectives: what a reader should take away. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.report.collectives.comparison import (
    FAR,
    PHRASES,
    CollectiveResults,
    PathComparison,
    fastest_ranges,
    path_comparisons,
)
from phalanx.report.collectives.measures import BenchMeasure, Obstacle
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import FastestBySize, Speed, headline_text
from phalanx.report.format import duration, joined, sentence, size

TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
HEADLINE_BYTES = 2**20
QUIET_PER_S = 300  # a quiet machine of two cores showed 210 to 240, a busy one 350 to 1,200


def findings(
    all_results: Sequence[CollectiveResults], measures: Sequence[BenchMeasure]
) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    return told(
        make_topic(
            "Phalanx against the rest",
            "The fastest path of Phalanx and the fastest of the others at each size, by their "
            "medians in the same run; of several MPI libraries the hardest to beat.",
            [(_label(group), against_rest(group)) for group in by_library(all_results)],
        ),
        make_topic(
            "Who wins where",
            "The path with the smallest median at each size that was measured, where the interval "
            f"of its ratio to every other says so; what takes more than {FAR:g} times as long is "
            "slower without one.",
            [(results.title, crossings(results)) for results in all_results],
        ),
        make_topic(
            "Unmodified PyTorch scripts",
            "torch.distributed on tensors where PyTorch put them, backend mpi against Gloo, at the "
            "size where it gains least.",
            [(results.title, private_tensors(results)) for results in all_results],
        ),
        _correctness(all_results),
        _disturbance(measures),
        _missing(measures),
        _not_completed(measures),
    )


def headline(all_results: Sequence[CollectiveResults]) -> str:
    """The one sentence that the page begins with: ours against the best of all others."""
    # The headline shows the fastest rival of all MPI libraries, of the first collective with one.
    for collective in dict.fromkeys(results.collective for results in all_results):
        found = [r for r in all_results if r.collective == collective and headline_comparison(r)]
        if found:
            hardest = min(found, key=lambda r: _gain(headline_comparison(r)))
            comparison = headline_comparison(hardest)
            assert comparison is not None  # as of all that were found
            finding = comparison.finding(len(found))
            what = f"{_what(hardest, comparison.num_bytes)}:"
            return headline_text(replace(finding, where=what, facts=""))
    if not all_results:
        return "Nothing to compare was measured yet"
    fastest = all_results[0].at(all_results[0].sizes[-1])[0]
    what = _what(all_results[0], fastest.num_bytes)
    return headline_text(f"{what}: {duration(fastest.median_s)} with {fastest.label}")


def headline_comparison(results: CollectiveResults) -> PathComparison | None:
    """The comparison at 1 MB, or at the size nearest to it."""
    return min(
        path_comparisons(results), key=lambda d: abs(d.num_bytes - HEADLINE_BYTES), default=None
    )


def by_library(all_results: Sequence[CollectiveResults]) -> list[list[CollectiveResults]]:
    """Group the results that differ in the MPI library alone."""
    groups: dict[object, list[CollectiveResults]] = {}
    for results in all_results:
        bench = results.measure.bench
        s = bench.setting if bench else None
        key = (results.collective, results.ranks, s and (s.dtype, s.op, s.crowd))
        groups.setdefault(key, []).append(results)
    return list(groups.values())


def against_rest(group: Sequence[CollectiveResults]) -> list[Speed]:
    """Return the smallest lead of Phalanx over any library: at the smallest and the largest size,
    and at those of TOLD_SIZES."""
    found = [comparison for results in group for comparison in path_comparisons(results)]
    sizes = sorted({comparison.num_bytes for comparison in found})
    shown = [n for n in sizes if n in TOLD_SIZES or n in (sizes[0], sizes[-1])]
    hardest = [min((d for d in found if d.num_bytes == n), key=_gain) for n in shown]
    return [comparison.finding(len(hardest)) for comparison in hardest]


def crossings(results: CollectiveResults) -> FastestBySize | None:
    """Return the fastest path for each range of sizes."""
    if results.sizes == (0,) or len({point.path for point in results.points}) < 2:
        return None
    return FastestBySize(ranges=tuple(fastest_ranges(results)))


def private_tensors(results: CollectiveResults) -> Speed | None:
    """torch.distributed on our backend against its others, tensors where PyTorch put them."""
    ours = {p.num_bytes: p for p in results.points if p.path == "torch"}
    gloo = {p.num_bytes: p for p in results.points if p.path == "gloo"}
    pairs = [PathComparison(num_bytes=n, ours=ours[n], theirs=gloo[n]) for n in ours if n in gloo]
    if not pairs:
        return None
    return replace(min(pairs, key=_gain).finding(len(pairs)), subject="backend mpi")


def _gain(comparison: PathComparison | None) -> float:
    return comparison.gain if comparison else float("inf")


def _what(results: CollectiveResults, num_bytes: int) -> str:
    """all-reduce of 1 MB on 2 ranks."""
    of_size = f" of {size(num_bytes)}" if num_bytes else ""
    return f"{PHRASES[results.collective]}{of_size} {results.where}"


def _label(group: Sequence[CollectiveResults]) -> str:
    if len(group) == 1:
        return group[0].title
    phrase = PHRASES[group[0].collective]
    return f"{phrase[0].upper()}{phrase[1:]}, {group[0].ranks} ranks, {len(group)} libraries"


def _correctness(all_results: Sequence[CollectiveResults]) -> Topic:
    """Report wrong results, or that there were none."""
    points = [(results, point) for results in all_results for point in results.points]
    calls = sum(len(point.times_s) for _, point in points)
    wrong = [
        (r.title, sentence(f"{p.label} at {size(p.num_bytes)}: {p.wrong:,} wrong elements"))
        for r, p in points
        if p.wrong
    ]
    text = f"All results of {calls:,} timed calls were right, every element on every rank."
    return make_topic(
        "Correctness",
        "Buffers are rewritten before every call, results checked after it.",
        wrong or ([("", text)] if calls else []),
    )


def _disturbance(measures: Sequence[BenchMeasure]) -> Topic:
    """Report other load on the machine during the measurement."""
    found = []
    for measure in measures:
        lost, bench = measure.preempted_per_s, measure.bench
        crowded = bench is not None and (
            bench.setting.crowd > 0 or bench.setting.ranks > bench.environment.cores
        )
        if lost is not None and lost > QUIET_PER_S and not crowded:
            text = (
                f"Ranks lost their core {lost:,.0f} times per second: other processes were "
                "running, and these are not the numbers of a quiet machine."
            )
            found.append((measure.mpi, text))
    rule = f"Said from {QUIET_PER_S} times per second up, if every rank has a core of its own."
    return make_topic("Disturbance", rule, found)


def _missing(measures: Sequence[BenchMeasure]) -> Topic:
    """List what could not be measured; once where it holds for every run."""
    met: dict[Obstacle, list[str]] = {}
    for measure in measures:
        for obstacle in measure.obstacles:
            met.setdefault(obstacle, []).append(measure.mpi)
    found = []
    for obstacle, runs in met.items():
        where = f" ({joined(runs)})" if len(runs) < len(measures) else ""
        reason = obstacle.reason.rstrip(".")
        found.append((obstacle.label, sentence(f"{PHRASES[obstacle.collective]}: {reason}{where}")))
    return make_topic(
        "Not measured", "Paths that were asked for and cannot be used here, with the reason.", found
    )


def _not_completed(measures: Sequence[BenchMeasure]) -> Topic:
    return make_topic(
        "Not completed",
        "What these measured before they ended is shown all the same.",
        [
            (measure.name, sentence(f"{measure.status}: {measure.error or '–'}"))
            for measure in measures
            if measure.status != "completed"
        ],
    )
