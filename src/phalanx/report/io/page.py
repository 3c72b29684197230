"""The pages of loading, of one measurement and of a study: what they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from phalanx.records.io import Cache
from phalanx.report.charts.figure import Chart
from phalanx.report.content import Content, Drawn, KeyFigure, chart_row, sections
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import amount, duration, percent
from phalanx.report.io import charts
from phalanx.report.io.comparison import (
    CACHE_LABELS,
    PHRASES,
    balance_s,
    best_of_each_format,
    busy,
    caches_of,
    fastest,
    floor_of,
    how,
    in_cache,
    own,
)
from phalanx.report.io.findings import findings, headline, study_findings, study_headline
from phalanx.report.io.folder import read_io_measure
from phalanx.report.io.measures import IoMeasure
from phalanx.report.io.study import read_io_study
from phalanx.report.io.tables import all_tables
from phalanx.report.study_content import machine, study_content
from phalanx.report.tables import environments

PANELS_BESIDE = 2
IoChart = tuple[str, Chart[charts.Loading]]
LOADING: tuple[IoChart, ...] = (
    ("throughput", charts.THROUGHPUT),
    ("first", charts.FIRST_BATCH),
)
MORE: tuple[IoChart, ...] = (
    ("readers", charts.BY_READERS),
    ("depth", charts.BY_DEPTH),
    ("ranks", charts.BY_RANKS),
)


def io_content(folder: Path) -> Content:
    """Return the content of the page of `phalanx bench io`.

    Raises: UserError when the records cannot be read.
    """
    measure = read_io_measure(folder)
    bench = measure.bench
    assert bench is not None  # checked by read_io_measure
    keys = [key_figure(measure, cache) for cache in caches_of(measure.points)]
    return Content(
        title=measure.name,
        kind="io",
        started_at=bench.started_at,
        command=bench.command,
        headline=headline(measure),
        lead=lead(measure),
        key_figures=[key for key in keys if key],
        leading=chart_row(_by_cache(measure, "utilisation", charts.UTILISATION)),
        topics=findings(measure),
        sections=sections(
            ("loading", "Loading", [chart_row(_by_cache(measure, *chart)) for chart in LOADING]),
            (
                "more",
                "Readers, depth, ranks",
                [chart_row(_by_cache(measure, *chart)) for chart in MORE],
            ),
        ),
        tables=all_tables([measure]),
        environment=environments([bench.environment]),
        num_panels=PANELS_BESIDE,
    )


def io_study_content(measures: StudyMeasures) -> Content:
    """Return the content of the page of `phalanx study io`."""
    study = read_io_study(measures.study, measures.folder)
    keys = [
        balance_figure(measure, cache)
        for measure in study.profiles
        for cache in caches_of(measure.points)
    ]
    loading = (LOADING[0], *MORE[:2])
    return study_content(
        study.study,
        [(run.status, run.bench.environment if run.bench else None) for run in study.runs],
        headline=study_headline(study),
        facts=[],
        key_figures=[key for key in keys if key],
        leading=chart_row(_by_profile(study.profiles, "busy", charts.BUSY_OVER_COMPUTE)),
        topics=study_findings(study),
        sections=sections(
            (
                "loading",
                "What comes through",
                [chart_row(_by_profile(study.profiles, *chart)) for chart in loading],
            )
        ),
        tables=all_tables(study.runs),
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
        f"{duration(setting.compute_s)} of compute per step on an emulated "
        f"{setting.accelerator.upper()}; {where}; {machine([bench.environment])}."
    )


def key_figure(measure: IoMeasure, cache: Cache) -> KeyFigure | None:
    """The best utilisation."""
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    if not points:
        return None
    best = max(points, key=busy)
    return KeyFigure(
        label=CACHE_LABELS[cache],
        value=percent(busy(best), 1),
        meaning=f"busy, {PHRASES[best.cell.format]}, {how(best.cell)}",
        beside=f"floor {percent(floor_of(measure), 0)}; first batch after {duration(best.first_s)}",
    )


def balance_figure(measure: IoMeasure, cache: Cache) -> KeyFigure | None:
    """Return the compute time at which the fastest way turns compute-bound."""
    best = fastest(best_of_each_format(measure.flat, cache))
    if best is None or measure.bench is None:
        return None
    return KeyFigure(
        label=f"{measure.name}, {CACHE_LABELS[cache]}",
        value=duration(balance_s(measure, best)),
        meaning="per step: below it the storage holds the accelerator up",
        beside=f"{PHRASES[best.cell.format]}, {how(best.cell)}; the profile computes "
        f"{duration(measure.bench.setting.compute_s)}",
    )


def _by_cache(measure: IoMeasure, name: str, chart: Chart[charts.Loading]) -> Iterable[Drawn]:
    for cache in caches_of(measure.points):
        of = charts.Loading(measure=measure, cache=cache)
        yield CACHE_LABELS[cache], chart(of, f"{name}-{cache}")


def _by_profile(
    profiles: Sequence[IoMeasure], name: str, chart: Chart[charts.Loading]
) -> Iterable[Drawn]:
    for number, measure in enumerate(profiles, 1):
        # Names of elements and files are ours; labels come from records and may hold anything.
        for label, drawn in _by_cache(measure, f"{name}-{number}", chart):
            yield f"{measure.name}, {label}", drawn
