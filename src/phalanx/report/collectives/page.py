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
)
from phalanx.report.collectives.findings import findings, headline, headline_comparison
from phalanx.report.collectives.folder import read_benches
from phalanx.report.collectives.measures import BenchMeasure
from phalanx.report.collectives.tables import machine_table, result_table, runs_table
from phalanx.report.comparison import counted
from phalanx.report.content import (
    Content,
    KeyFigure,
    Row,
    chart_row,
    sections,
    speed_figure,
    with_rows,
)
from phalanx.report.format import duration, joined
from phalanx.report.study_content import machine
from phalanx.report.tables import environments

CHARTS: tuple[tuple[str, Callable[[CollectiveResults, str], Figure | None]], ...] = (
    ("time", charts.call_time),
    ("slower", charts.TIMES_SLOWER),
    ("bandwidth", charts.BANDWIDTH),
    ("floor", charts.TIMES_FLOOR),
    ("memory", charts.MEMORY),
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
        key_figures=key_figures(found),
        leading=leading,
        topics=findings(found, measures),
        sections=sections(("sizes", "Against the others, and against the machine", rows)),
        tables=with_rows(*map(result_table, found), machine_table(measures), runs_table(measures)),
        environment=environments([bench.environment for bench in benches]),
        num_panels=len(found),
    )


def key_figures(found: Sequence[CollectiveResults]) -> list[KeyFigure]:
    """Ours against the best of the others, at 1 MB or near it; the time if that is unclear.

    Intervals are corrected for all of them together.
    """
    pairs = [(results, pair) for results in found if (pair := headline_comparison(results))]
    figures = []
    for results, pair in pairs:
        finding = pair.finding(len(pairs))
        if finding.interval is None or finding.verdict == "unclear":
            figure = KeyFigure(
                label=results.title,
                value=duration(pair.ours.median_s),
                meaning=f"{pair.ours.label} {finding.where}".rstrip(),
                beside=f"{duration(pair.theirs.median_s)} with {pair.theirs.label}, unclear",
            )
        else:
            figure = speed_figure(
                results.title,
                finding.interval,
                meaning=f"as fast as {pair.theirs.label} {finding.where}".rstrip(),
                facts=[finding.facts],
            )
        figures.append(figure)
    return figures


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
