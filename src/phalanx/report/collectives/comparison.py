"""The paths of one measurement and collective beside each other, size by size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from phalanx.records.collectives import Collective, beside_crowd
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint
from phalanx.report.findings import Speed
from phalanx.report.format import duration, size
from phalanx.report.statistics import Interval, blocks, not_told_apart, ratio_of_times

FAR = 3.0
"""A path whose median is more than this many times as long is slower, without an interval."""

PHRASES: dict[Collective, str] = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
    "barrier": "barrier",
}


@dataclass(frozen=True, kw_only=True)
class CollectiveResults:
    """One collective of one run: the points that charts, tables and sentences compare."""

    label: str
    measure: BenchMeasure
    collective: Collective
    points: tuple[CollectivePoint, ...]

    @property
    def title(self) -> str:
        """The label as the beginning of a line: the first letter only, names keep theirs."""
        return f"{self.label[0].upper()}{self.label[1:]}"

    @property
    def ranks(self) -> int:
        return self.points[0].ranks

    @property
    def where(self) -> str:
        """The ranks, and what else ran."""
        bench = self.measure.bench
        return f"on {self.ranks} ranks{beside_crowd(bench.setting.crowd if bench else 0)}"

    @property
    def timing(self) -> str:
        """Title of a time: of one call, or the mean of several."""
        number = self.points[0].calls_a_time
        return "Time of a call" if number == 1 else f"Mean time of {number} calls in a row"

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({point.num_bytes for point in self.points}))

    def at(self, num_bytes: int) -> tuple[CollectivePoint, ...]:
        """The paths at one size, the fastest first."""
        found = [point for point in self.points if point.num_bytes == num_bytes]
        return tuple(sorted(found, key=lambda point: point.median_s))


@dataclass(frozen=True, kw_only=True)
class PathComparison:
    """The fastest of our paths against the fastest of the others, in one run."""

    num_bytes: int
    ours: CollectivePoint
    theirs: CollectivePoint

    @property
    def gain(self) -> float:
        """Speed of ours, relative to theirs."""
        return self.theirs.median_s / self.ours.median_s

    def finding(self, comparisons: int = 1) -> Speed:
        """Return what the interval of the gain allows to say, among `comparisons` of them."""
        return Speed(
            subject=self.ours.label,
            against=self.theirs.label,
            interval=speed_ratio(self.ours, self.theirs, comparisons=comparisons),
            n=comparisons,
            facts=f"{duration(self.ours.median_s)} against {duration(self.theirs.median_s)}",
            where=f"at {size(self.num_bytes)}" if self.num_bytes else "",
            units="calls",
        )


def collective_results(measures: Sequence[BenchMeasure]) -> tuple[CollectiveResults, ...]:
    """Return the results by collective, then by measurement."""
    found = [
        (collective, measure, points)
        for collective in PHRASES
        for measure in measures
        if (points := tuple(p for p in measure.points if p.collective == collective))
    ]
    runs = [measure for _, measure, _ in found]
    return tuple(
        CollectiveResults(
            label=_label(collective, measure, runs),
            measure=measure,
            collective=collective,
            points=points,
        )
        for collective, measure, points in found
    )


def first_collective(measure: BenchMeasure) -> Collective | None:
    """The first of those that were measured, in the order of the page."""
    found = {point.collective for point in measure.points}
    return next((collective for collective in PHRASES if collective in found), None)


def path_comparisons(results: CollectiveResults) -> tuple[PathComparison, ...]:
    """Return the comparisons by increasing size, where both sides were measured."""
    made = []
    for num_bytes in results.sizes:
        points = results.at(num_bytes)
        ours = next((point for point in points if point.is_ours), None)
        theirs = next((point for point in points if not point.is_ours), None)
        if ours and theirs:
            made.append(PathComparison(num_bytes=num_bytes, ours=ours, theirs=theirs))
    return tuple(made)


def speed_ratio(
    ours: CollectivePoint, theirs: CollectivePoint, *, comparisons: int = 1
) -> Interval | None:
    """Return the interval of the speed ratio ours : theirs, or None with too few calls."""
    slow, fast = blocks(theirs.times_s), blocks(ours.times_s)
    return ratio_of_times((slow,), (fast,), comparisons=comparisons)


def fastest(points: Sequence[CollectivePoint]) -> CollectivePoint | None:
    """points: the paths at one size, the fastest first. None where the first is not seen to be
    faster than every other that takes at most FAR times as long."""
    first, *others = points
    near = [point for point in others if point.median_s <= FAR * first.median_s]
    rivals = not_told_apart(near, lambda p: speed_ratio(first, p, comparisons=len(others)))
    return None if rivals else first


def fastest_ranges(results: CollectiveResults) -> list[tuple[str | None, int, int]]:
    """(label of the fastest path, or None if that is unclear, first size, last size), by
    increasing size."""
    found = [(fastest(results.at(num_bytes)), num_bytes) for num_bytes in results.sizes]
    winners = [(point.label if point else None, num_bytes) for point, num_bytes in found]
    made = []
    for label, group in groupby(winners, key=lambda winner: winner[0]):
        sizes = [num_bytes for _, num_bytes in group]
        made.append((label, sizes[0], sizes[-1]))
    return made


def _label(collective: Collective, measure: BenchMeasure, runs: Sequence[BenchMeasure]) -> str:
    """The collective, and what tells this run from the others."""
    parts = [PHRASES[collective]]
    if len({run.mpi for run in runs}) > 1:
        parts.append(measure.mpi)
    settings = [run.bench.setting for run in runs if run.bench]
    if measure.bench and len({setting.ranks for setting in settings}) > 1:
        parts.append(f"{measure.bench.setting.ranks} ranks")
    if measure.bench and len({(s.dtype, s.op) for s in settings}) > 1:
        parts.append(f"{measure.bench.setting.dtype} {measure.bench.setting.op}")
    if measure.bench and measure.bench.setting.crowd:
        parts.append(beside_crowd(measure.bench.setting.crowd).strip())
    label = ", ".join(parts)
    names = {run.name for run in runs}
    told_apart = len({(r.mpi, _words(r)) for r in runs}) == len(names)
    return label if told_apart else f"{label}, {measure.name}"


def _words(measure: BenchMeasure) -> str:
    setting = measure.bench.setting if measure.bench else None
    if setting is None:
        return ""
    return f"{setting.ranks} {setting.dtype} {setting.op} {setting.crowd}"
