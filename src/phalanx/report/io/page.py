"""The parts of the page of `phalanx bench io`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from phalanx.records.io import Cache
from phalanx.report.charts.figure import Figure
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import amount, duration, percent
from phalanx.report.io import charts
from phalanx.report.io.comparison import (
    CACHE_LABELS,
    PHRASES,
    caches_of,
    floor_of,
    how,
    in_cache,
    own,
)
from phalanx.report.io.findings import findings, headline
from phalanx.report.io.folder import read_io_measure
from phalanx.report.io.measures import IoMeasure
from phalanx.report.io.tables import storage, ways, written
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments

PANELS_BESIDE = 2
Draw = Callable[[IoMeasure, Cache, str], Figure | None]

SECTIONS: tuple[tuple[str, str, tuple[tuple[str, Draw], ...]], ...] = (
    (
        "loading",
        "Loading",
        (("throughput", charts.throughput), ("first", charts.first_batch)),
    ),
    (
        "more",
        "Readers, depth, ranks",
        (
            ("readers", charts.by_readers),
            ("depth", charts.by_depth),
            ("ranks", charts.by_ranks),
        ),
    ),
)


def io_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    measure = read_io_measure(folder)
    bench = measure.bench
    assert bench is not None  # checked by read_io_measure
    caches = caches_of(measure.points)
    return Content(
        title=measure.name,
        kind="io",
        started_at=bench.started_at,
        command=bench.command,
        headline=headline([measure]),
        lead=lead(measure),
        key_figures=[figure for cache in caches if (figure := key_figure(measure, cache))],
        leading=row_of(_panels(measure, "utilisation", charts.utilisation)),
        topics=findings([measure]),
        sections=sections(measure),
        tables=[*ways(measure), *written([measure]), *storage([measure])],
        environment=environments([bench.environment]),
        num_panels=PANELS_BESIDE,
    )


def lead(measure: IoMeasure) -> str:
    """Return one sentence on what was measured."""
    assert measure.bench
    setting, bench = measure.bench.setting, measure.bench
    scaled = " (scaled)" if setting.scaled else ""
    where = bench.storage.file_system or "an unknown file system"
    return (
        f"{setting.profile.name}{scaled}: {setting.num_samples:,} samples of "
        f"{amount(setting.sample_bytes)} a rank, batches of {setting.batch_size}, "
        f"{duration(setting.compute_s)} of compute a step on an emulated "
        f"{setting.accelerator.upper()}; {where}; {machine([bench.environment])}."
    )


def key_figure(measure: IoMeasure, cache: Cache) -> KeyFigure | None:
    """The best utilisation."""
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    if not points:
        return None
    best = max(points, key=lambda p: p.utilisation or 0.0)
    return KeyFigure(
        label=CACHE_LABELS[cache],
        value=percent(best.utilisation or 0.0, 1),
        meaning=f"busy, {PHRASES[best.cell.format]}, {how(best.cell)}",
        beside=f"floor {percent(floor_of(measure), 0)}; first batch after {duration(best.first_s)}",
    )


def sections(measure: IoMeasure) -> tuple[Section, ...]:
    """Return the sections with all charts that the records allow."""
    made = []
    for name, title, drawn in SECTIONS:
        rows = tuple(row for chart, draw in drawn if (row := row_of(_panels(measure, chart, draw))))
        if rows:
            made.append(Section(name=name, title=title, rows=rows))
    return tuple(made)


def _panels(measure: IoMeasure, chart: str, draw: Draw) -> Iterable[Panel]:
    for cache in caches_of(measure.points):
        if drawn := draw(measure, cache, f"{chart}-{cache}"):
            yield Panel(label=CACHE_LABELS[cache], figure=drawn)


def row_of(panels: Iterable[Panel]) -> Row | None:
    """Panels of one chart as a row; None without any."""
    made: Sequence[Panel] = tuple(panels)
    if not made:
        return None
    first = made[0].figure
    return Row(title=first.title, caption=first.caption, panels=tuple(made))
