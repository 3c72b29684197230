"""Summary of a measurement for the terminal: tables, and the findings in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.report.collectives.comparison import (
    PHRASES,
    CollectiveResults,
    collective_results,
    path_comparisons,
)
from phalanx.report.collectives.findings import findings
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint
from phalanx.report.collectives.tables import COLUMNS, in_order, row
from phalanx.report.comparison import counted
from phalanx.report.format import duration, size

WIDE_COLUMNS = 104
# Type and operation are the same in every row and stand in the title; the count is size ÷ type.
ONLY_WHEN_WIDE = frozenset({"count#", "type", "op"})


def show(measure: BenchMeasure, console: Console) -> None:
    """Print the tables of all collectives and the findings."""
    drawn_from = collective_results([measure])
    titles = {results.title for results in drawn_from}
    wide = console.width >= WIDE_COLUMNS
    for results in drawn_from:
        console.print(Text(title(results), style="bold"))
        console.print(table_of(results, wide=wide))
    console.print(machine_line(measure), markup=False)
    for topic in findings(drawn_from, [measure]):
        console.print(Text(f"{topic.title}", style="bold"))
        for sentence in topic.sentences:
            # With one collective its name would begin every line.
            label = "" if len(drawn_from) == 1 and sentence.label in titles else sentence.label
            console.print(f"  {label + ': ' if label else ''}{sentence.text}", markup=False)


def title(results: CollectiveResults) -> str:
    setting = results.measure.bench.setting if results.measure.bench else None
    words = [results.label, counted(results.ranks, "rank")]
    if setting and results.collective != "barrier":
        words.append(setting.dtype)
    if setting and results.collective in ("all_reduce", "reduce_scatter"):
        words.append(setting.op)
    number = results.points[0].calls_a_time
    times = "times" if number == 1 else f"mean times of {number} calls"
    return f"{' · '.join(words)}   ({times} in µs, bandwidths in GB/s)"


def table_of(results: CollectiveResults, *, wide: bool) -> Table:
    """Return the table of a collective in the columns of nccl-tests, grouped by size."""
    names = COLUMNS.split("|")
    shown = [i for i, name in enumerate(names) if wide or name not in ONLY_WHEN_WIDE]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i in shown:
        name = names[i].removesuffix("#").removesuffix(" µs")
        numeric = names[i].endswith("#") or name == "size"
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for num_bytes in results.sizes:
        points = in_order(results, num_bytes)
        fastest = min(points, key=lambda point: point.median_s)
        for point in points:
            cells = row(results, point)
            table.add_row(
                *(Text(cells[i], style=_style(names[i], point, fastest)) for i in shown),
                end_section=point is points[-1] and len(points) > 1,
            )
    return table


def machine_line(measure: BenchMeasure) -> str:
    """The machine's own speed, in one line."""
    machine = measure.machine
    parts = []
    if machine.round_trip_s is not None:
        parts.append(f"flag there and back {duration(machine.round_trip_s)}")
    for name, curve in (("copy", machine.copy), ("add", machine.add)):
        sizes = [n for n in (2**20, max(curve, default=0)) if n in curve]
        rates = [f"{curve[n] / 1e9:.0f} GB/s at {size(n)} a rank" for n in dict.fromkeys(sizes)]
        if rates:
            parts.append(f"{name} {', '.join(rates)}")
    return f"this machine: {'; '.join(parts)}"


def finding_lines(
    drawn_from: Sequence[CollectiveResults], measures: Sequence[BenchMeasure]
) -> list[str]:
    """Return every finding as a line, with its label first."""
    return [
        f"{topic.title}: {sentence.label + ': ' if sentence.label else ''}{sentence.text}"
        for topic in findings(drawn_from, measures)
        for sentence in topic.sentences
    ]


def as_json(measure: BenchMeasure) -> dict[str, Any]:
    """Return the content of the tables, unrounded, for other programs."""
    drawn_from = collective_results([measure])
    return {
        "bench": measure.name,
        "mpi": measure.mpi,
        "status": measure.status,
        "rows": [_row(point) for results in drawn_from for point in results.points],
        "against_the_rest": [
            {
                "collective": results.collective,
                "bytes": comparison.num_bytes,
                "ours": comparison.ours.label,
                "theirs": comparison.theirs.label,
                "gain": comparison.gain,
            }
            for results in drawn_from
            for comparison in path_comparisons(results)
        ],
        "machine": {
            "copy_bytes_per_s": {str(n): rate for n, rate in measure.machine.copy.items()},
            "add_bytes_per_s": {str(n): rate for n, rate in measure.machine.add.items()},
            "flag_round_trip_s": measure.machine.round_trip_s,
        },
        "not_measured": [
            {"path": o.label, "collective": PHRASES[o.collective], "reason": o.reason}
            for o in measure.obstacles
        ],
        "findings": finding_lines(drawn_from, [measure]),
    }


def _row(point: CollectivePoint) -> dict[str, Any]:
    return {
        "collective": point.collective,
        "path": point.path,
        "label": point.label,
        "ranks": point.ranks,
        "count": point.count,
        "bytes": point.num_bytes,
        "calls": len(point.times_s),
        "min_s": point.minimum_s,
        "median_s": point.median_s,
        "p99_s": point.p99_s,
        "algorithm_bandwidth_bytes_per_s": point.algorithm_bandwidth,
        "bus_bandwidth_bytes_per_s": point.bus_bandwidth,
        "wrong": point.wrong,
        "floor_s": None if point.floor is None else point.floor.seconds,
        "times_floor": point.times_floor,
    }


def _style(column: str, point: CollectivePoint, fastest: CollectivePoint) -> str:
    if column.startswith("wrong") and point.wrong:
        return "bold red"
    return "bold" if point is fastest else ""
