"""Summary of a measurement for the terminal: tables, and the findings in a few lines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.collectives.comparison import (
    PHRASES,
    CollectiveResults,
    collective_results,
    path_comparisons,
)
from phalanx.report.collectives.findings import findings
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint
from phalanx.report.collectives.tables import in_order, result_table
from phalanx.report.comparison import counted
from phalanx.report.format import duration, size
from phalanx.report.terminal import finding_lines, print_findings, terminal_table

WIDE_COLUMNS = 104
# Type and operation are the same in every row and stand in the title; the count is size ÷ type.
ONLY_WHEN_WIDE = ("count", "type", "op")


def show(measure: BenchMeasure, console: Console) -> None:
    """Print the tables of all collectives and the findings."""
    found = collective_results([measure])
    wide = console.width >= WIDE_COLUMNS
    for results in found:
        console.print(Text(title(results), style="bold"))
        console.print(table_of(results, wide=wide))
    console.print(machine_line(measure), markup=False)
    # With one collective its name would begin every line.
    alone = [found[0].title] if len(found) == 1 else []
    print_findings(findings(found, [measure]), console, without_labels=alone)


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


def table_of(results: CollectiveResults, *, wide: bool) -> TerminalTable:
    """Return the table of a collective in the columns of nccl-tests, grouped by size."""
    points = [point for n in results.sizes for point in in_order(results, n)]
    fastest = [results.at(n)[0] for n in results.sizes]
    several = len(points) > len(fastest)
    ends = [
        i for i, (a, b) in enumerate(pairwise(points)) if several and a.num_bytes != b.num_bytes
    ]

    def style(row: int, column: str) -> str:
        if column.startswith("wrong") and points[row].wrong:
            return "bold red"
        return "bold" if points[row] in fastest else ""

    return terminal_table(
        result_table(results, unit=""),
        left_out=() if wide else ONLY_WHEN_WIDE,
        padding=1,
        style=style,
        section_ends=ends,
    )


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
        "findings": finding_lines(findings(drawn_from, [measure])),
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
