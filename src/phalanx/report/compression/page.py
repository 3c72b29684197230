"""The parts of the page of a compression study."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.compression.charts import accuracy, sent, step_by_bandwidth, step_on
from phalanx.report.compression.findings import best_compressor, findings, headline, nearest_gigabit
from phalanx.report.compression.format import compressor_phrase
from phalanx.report.compression.study_data import (
    KIND,
    MEMORY,
    NONE,
    CompressionStudyData,
    read_study_data,
)
from phalanx.report.compression.tables import compressors, fit_table
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import amount, percent, span
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments, executions

Drawn = tuple[str, Figure | None]


def compression_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(folder))


def content_of(data: CompressionStudyData) -> Content:
    """Return the content of a compression study's page."""
    measures = data.measures
    known = [measure.run.environment for measure in measures.runs if measure.run]
    return Content(
        title=measures.study.study,
        kind=KIND,
        started_at=measures.study.started_at,
        command=measures.study.command,
        headline=headline(data),
        lead=_lead(data, machine(known)),
        key_figures=key_figures(data),
        leading=_side_by_side(data),
        topics=findings(data),
        sections=sections(data),
        tables=[
            table
            for table in (compressors(data), fit_table(data), executions(measures.runs))
            if table.rows
        ],
        environment=environments(known),
        num_panels=2,
    )


def key_figures(data: CompressionStudyData) -> list[KeyFigure]:
    """Return the compressor that is faster and holds the accuracy, for each place."""
    figures = []
    for place in data.places:
        chosen = best_compressor(data, place)
        if chosen is None:
            continue
        best, interval = chosen
        spread = data.accuracy(best.compressor)
        beside = f"{span(interval)}; {1e3 * best.step_s:.3g} ms a step"
        beside += f", {percent(spread.mean, 2)} accuracy" if spread else ""
        figures.append(
            KeyFigure(
                label=place,
                value=f"{interval.estimate:.2f}\N{MULTIPLICATION SIGN}",
                meaning=compressor_phrase(best.compressor),
                beside=beside,
            )
        )
    return figures


def sections(data: CompressionStudyData) -> tuple[Section, ...]:
    """Return the sections with all charts that the records allow."""
    by_place = [
        (place, step_on(data, place, f"step-{number}"))
        for number, place in enumerate(data.places, 1)
    ]
    made = (
        (
            "bandwidth",
            "Where it begins to pay",
            _row([("imitated links", step_by_bandwidth(data, "by-bandwidth"))]),
        ),
        ("places", "A step in each place", _row(by_place)),
    )
    return tuple(Section(name=name, title=title, rows=(row,)) for name, title, row in made if row)


def _side_by_side(data: CompressionStudyData) -> Row | None:
    place = nearest_gigabit(data) or MEMORY
    row = _row(
        [
            ("bytes", sent(data, "sent")),
            (f"time, {place}", step_on(data, place, "time")),
            ("accuracy", accuracy(data, "accuracy")),
        ]
    )
    if row is None:
        return None
    captions = " ".join(panel.figure.caption for panel in row.panels)
    return Row(title="Bytes, time and accuracy", caption=captions, panels=row.panels)


def _row(drawn: Iterable[Drawn]) -> Row | None:
    panels = tuple(Panel(label=label, figure=figure) for label, figure in drawn if figure)
    if not panels:
        return None
    first = panels[0].figure
    return Row(title=first.title, caption=first.caption, panels=panels)


def _lead(data: CompressionStudyData, where: str) -> str:
    measures = data.measures
    completed = sum(measure.status == "completed" for measure in measures.runs)
    parts = [f"{completed} of {len(measures.runs)} runs completed"]
    workloads = {
        f"{s.model} on {s.dataset}, {s.ranks} ranks" for m in measures.runs if (s := m.setting)
    }
    parts += sorted(workloads)
    whole = data.sent_bytes(NONE)
    parts += [f"{amount(whole)} a step without compression"] if whole else []
    parts += [where] if where else []
    return f"{', '.join(parts)}."
