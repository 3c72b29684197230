"""The page of measured collectives: what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.collectives import charts
from phalanx.report.collectives.comparison import (
    PHRASES,
    CollectiveResults,
    collective_results,
    path_comparisons,
)
from phalanx.report.collectives.findings import findings, headline, headline_comparison
from phalanx.report.collectives.folder import read_benches
from phalanx.report.collectives.measures import BenchMeasure
from phalanx.report.collectives.tables import machine_tables, result_tables, runs_table
from phalanx.report.comparison import counted
from phalanx.report.content import Content, KeyFigure, Row, chart_row, sections
from phalanx.report.format import duration, joined, size
from phalanx.report.study_content import machine
from phalanx.report.tables import environments

CHARTS: tuple[tuple[str, Callable[[CollectiveResults, str], Figure | None]], ...] = (
    ("time", charts.call_time),
    ("slower", charts.times_slower),
    ("bandwidth", charts.bandwidth),
    ("floor", charts.times_floor),
    ("memory", charts.memory),
)


def collectives_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    measures = read_benches(folder)
    found = collective_results(measures)
    benches = [measure.bench for measure in measures if measure.bench]
    leading, *rows = [_row(chart, draw, found) for chart, draw in CHARTS]
    return Content(
        title=measures[0].name if len(measures) == 1 else folder.name,
        kind="collectives",
        started_at=min((bench.started_at for bench in benches), default=""),
        command="\n".join(bench.command for bench in benches),
        headline=headline(found),
        lead=_lead(measures),
        key_figures=[figure for s in found if (figure := key_figure(s))],
        leading=leading,
        topics=findings(found, measures),
        sections=sections(("sizes", "Against the others, and against the machine", rows)),
        tables=[*result_tables(found), *machine_tables(measures), runs_table(measures)],
        environment=environments([bench.environment for bench in benches]),
        num_panels=len(found),
    )


def key_figure(results: CollectiveResults) -> KeyFigure | None:
    """Ours against the best of the others, at 1 MB or near it."""
    comparison = headline_comparison(results)
    if comparison is None:
        return None
    where = f" at {size(comparison.num_bytes)}" if comparison.num_bytes else ""
    least = min(path_comparisons(results), key=lambda d: d.gain)
    beside = f"{duration(comparison.ours.median_s)} against {duration(comparison.theirs.median_s)}"
    if len(results.sizes) > 1:
        beside += f"; at least {least.gain:.1f}\N{MULTIPLICATION SIGN} ({size(least.num_bytes)})"
    return KeyFigure(
        label=results.title,
        value=f"{comparison.gain:.1f}\N{MULTIPLICATION SIGN}",
        meaning=f"as fast as {comparison.theirs.label}{where}",
        beside=beside,
    )


def _lead(measures: Sequence[BenchMeasure]) -> str:
    benches = [measure.bench for measure in measures if measure.bench]
    what = joined(list(dict.fromkeys(PHRASES[c] for b in benches for c in b.setting.collectives)))
    types = joined(list(dict.fromkeys(f"{b.setting.dtype} {b.setting.op}" for b in benches)))
    ranks = joined(list(dict.fromkeys(counted(b.setting.ranks, "rank") for b in benches)))
    libraries = joined(list(dict.fromkeys(measure.mpi for measure in measures if measure.bench)))
    calls = sum(len(point.times_s) for measure in measures for point in measure.points)
    where = machine([bench.environment for bench in benches])
    return f"{what}, {types}, {ranks}, {libraries}; {calls:,} timed calls; {where}."


def _row(
    chart: str,
    draw: Callable[[CollectiveResults, str], Figure | None],
    found: Sequence[CollectiveResults],
) -> Row | None:
    return chart_row((r.title, draw(r, f"{chart}-{number}")) for number, r in enumerate(found, 1))
