"""The parts of a page of measured collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.collectives.charts import (
    bandwidth,
    call_time,
    memory,
    times_floor,
    times_slower,
)
from phalanx.report.collectives.comparison import (
    PHRASES,
    CollectiveResults,
    collective_results,
    path_comparisons,
)
from phalanx.report.collectives.finding_sentences import headline_comparison
from phalanx.report.collectives.findings import findings, headline
from phalanx.report.collectives.folder import read_benches
from phalanx.report.collectives.measures import BenchMeasure
from phalanx.report.collectives.tables import machine_tables, result_tables, runs_table
from phalanx.report.comparison import counted
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import duration, joined, size
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments

Draw = Callable[[CollectiveResults, str], Figure | None]

LEADING: tuple[str, Draw] = ("time", call_time)
SECTIONS: tuple[tuple[str, str, tuple[tuple[str, Draw], ...]], ...] = (
    (
        "sizes",
        "Against the others, and against the machine",
        (
            ("slower", times_slower),
            ("bandwidth", bandwidth),
            ("floor", times_floor),
            ("memory", memory),
        ),
    ),
)


def collectives_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    measures = read_benches(folder)
    drawn_from = collective_results(measures)
    benches = [measure.bench for measure in measures if measure.bench]
    return Content(
        title=measures[0].name if len(measures) == 1 else folder.name,
        kind="collectives",
        started_at=min((bench.started_at for bench in benches), default=""),
        command="\n".join(bench.command for bench in benches),
        headline=headline(drawn_from),
        lead=_lead(measures),
        key_figures=[figure for s in drawn_from if (figure := key_figure(s))],
        leading=_row(*LEADING, drawn_from),
        topics=findings(drawn_from, measures),
        sections=tuple(_sections(drawn_from)),
        tables=[*result_tables(drawn_from), *machine_tables(measures), runs_table(measures)],
        environment=environments([bench.environment for bench in benches]),
        num_panels=len(drawn_from),
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


def _sections(drawn_from: Sequence[CollectiveResults]) -> list[Section]:
    made = []
    for name, title, charts in SECTIONS:
        rows = tuple(row for chart in charts if (row := _row(*chart, drawn_from)))
        if rows:
            made.append(Section(name=name, title=title, rows=rows))
    return made


def _row(chart: str, draw: Draw, drawn_from: Sequence[CollectiveResults]) -> Row | None:
    panels = []
    for number, results in enumerate(drawn_from, 1):
        if drawn := draw(results, f"{chart}-{number}"):
            panels.append(Panel(label=results.title, figure=drawn))
    if not panels:
        return None
    first = panels[0].figure
    return Row(title=first.title, caption=first.caption, panels=tuple(panels))
