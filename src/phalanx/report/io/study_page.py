"""The parts of the page of `phalanx study io`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import altair as alt

from phalanx.records.io import Cache
from phalanx.report.charts.figure import Figure, figure, table
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import duration
from phalanx.report.io import charts
from phalanx.report.io.comparison import (
    CACHE_LABELS,
    PHRASES,
    balance_s,
    best_of_each_format,
    caches_of,
    fastest,
    floor_of,
    how,
    in_cache,
    own,
)
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.page import PANELS_BESIDE, row_of
from phalanx.report.io.study import IoStudy, read_io_study
from phalanx.report.io.study_findings import study_findings, study_headline
from phalanx.report.io.tables import storage, ways, written
from phalanx.report.io.theme import lines
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments

KIND = "io"
Draw = Callable[[IoMeasure, Cache, str], Figure | None]


def io_study_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    study = read_io_study(folder)
    known = [run.bench.environment for run in study.runs if run.bench]
    return Content(
        title=study.study.study,
        kind=KIND,
        started_at=study.study.started_at,
        command=study.study.command,
        headline=study_headline(study),
        lead=_lead(study, machine(known)),
        key_figures=[
            key
            for measure in study.profiles
            for cache in caches_of(measure.points)
            if (key := key_figure(measure, cache))
        ],
        leading=_row(study, "busy", busy_over_compute),
        topics=study_findings(study),
        sections=_sections(study),
        tables=[
            *(one for run in study.runs for one in ways(run)),
            *written(study.runs),
            *storage(study.runs),
        ],
        environment=environments(known),
        num_panels=PANELS_BESIDE,
    )


def key_figure(measure: IoMeasure, cache: Cache) -> KeyFigure | None:
    """Return the compute time at which the fastest way turns compute-bound."""
    best = fastest(best_of_each_format(measure.flat, cache))
    if best is None or measure.bench is None:
        return None
    return KeyFigure(
        label=f"{measure.name}, {CACHE_LABELS[cache]}",
        value=duration(balance_s(measure, best)),
        meaning="a step: below it the storage holds the accelerator up",
        beside=f"{PHRASES[best.cell.format]}, {how(best.cell)}; the profile computes "
        f"{duration(measure.bench.setting.compute_s)}",
    )


def busy_over_compute(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """A line a format: its best utilisation at each compute time."""
    best: dict[tuple[str, float], IoPoint] = {}
    for point in own(in_cache(measure.with_compute, cache)):
        key = (point.cell.format, point.compute_s)
        if key not in best or (point.utilisation or 0.0) > (best[key].utilisation or 0.0):
            best[key] = point
    if not best:
        return None
    rows = charts.rows_of([best[key] for key in sorted(best)])
    times = sorted({float(str(row["compute_ms"])) for row in rows})
    x = alt.X(
        "compute_ms:Q",
        title="compute of a step (ms, logarithmic)",
        scale=alt.Scale(type="log", padding=12, nice=False),
        axis=alt.Axis(values=times, format=".3~r", grid=False),
    )
    y = alt.Y(
        "utilisation:Q",
        title="busy: compute \N{DIVISION SIGN} total time",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    floor = alt.Chart(table()).mark_rule(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    return figure(
        alt.layer(lines(rows, x, y), floor.encode(y=alt.datum(floor_of(measure)))),
        rows,
        name=name,
        title="How busy an accelerator is, from fast to slow ones",
        caption="Of each format the best way at each compute time; left the storage holds the "
        "accelerator up, right it waits for it. The dashed line is the floor.",
        source=charts.SOURCE,
        runs=[measure.name],
        height_pixels=330,
    )


def _sections(study: IoStudy) -> tuple[Section, ...]:
    rows = (
        _row(study, "throughput", charts.throughput),
        _row(study, "readers", charts.by_readers),
        _row(study, "depth", charts.by_depth),
    )
    made = tuple(row for row in rows if row)
    return (Section(name="loading", title="What comes through", rows=made),) if made else ()


def _row(study: IoStudy, chart: str, draw: Draw) -> Row | None:
    return row_of(_panels(study, chart, draw))


def _panels(study: IoStudy, chart: str, draw: Draw) -> Iterable[Panel]:
    for number, measure in enumerate(study.profiles, 1):
        for cache in caches_of(measure.points):
            # Names of elements and files are ours; labels come from records and may hold anything.
            if drawn := draw(measure, cache, f"{chart}-{number}-{cache}"):
                yield Panel(label=f"{measure.name}, {CACHE_LABELS[cache]}", figure=drawn)


def _lead(study: IoStudy, where: str) -> str:
    completed = sum(run.status == "completed" for run in study.runs)
    parts = [f"{completed} of {len(study.runs)} runs completed", *([where] if where else [])]
    return f"{', '.join(parts)}."
