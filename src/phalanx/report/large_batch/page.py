"""The parts of the page of a large-batch study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.format import percent
from phalanx.report.large_batch.accuracy_comparison import MARGIN, largest_holding_by_remedy
from phalanx.report.large_batch.charts import (
    accuracy_by_batch,
    gap_by_batch,
    reached_by_batch,
    training_loss,
)
from phalanx.report.large_batch.findings import findings, headline
from phalanx.report.large_batch.study_data import KIND, LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.tables import remedies, times
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments, executions
from phalanx.report.topic import Topic

LOSS_PANELS = 4
"""The largest batches: at small ones all remedies are much the same."""
KEY_FIGURES = 3

Drawn = tuple[str, Figure | None]


def large_batch_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(folder))


def content_of(data: LargeBatchStudyData) -> Content:
    """Return the content of a large-batch study's page."""
    measures = data.measures
    known = [measure.run.environment for measure in measures.runs if measure.run]
    topics: tuple[Topic, ...] = findings(data)
    return Content(
        title=measures.study.study,
        kind=KIND,
        started_at=measures.study.started_at,
        command=measures.study.command,
        headline=headline(data),
        lead=_lead(data, machine(known)),
        key_figures=key_figures(data),
        leading=_leading(data),
        topics=topics,
        sections=sections(data),
        tables=[
            table
            for table in (remedies(data), times(data), executions(measures.runs))
            if table.rows
        ],
        environment=environments(known),
        num_panels=2,
    )


def key_figures(data: LargeBatchStudyData) -> list[KeyFigure]:
    """The largest batch of each remedy that holds the accuracy, the largest first."""
    furthest = sorted(largest_holding_by_remedy(data), key=lambda cell: -cell.batch_size)
    return [
        KeyFigure(
            label=cell.remedy,
            value=f"{cell.batch_size:,}",
            meaning=f"largest batch up to which the accuracy holds, to {MARGIN * 100:g} points",
            beside=percent(cell.accuracy.mean, 2) if cell.accuracy else "",
        )
        for cell in furthest[:KEY_FIGURES]
    ]


def sections(data: LargeBatchStudyData) -> tuple[Section, ...]:
    """Return the sections with all charts that the records allow."""
    largest = data.batch_sizes[1:][-LOSS_PANELS:]
    made = (
        (
            "loss",
            "Training loss, with and without warm-up",
            [_row((f"batch {n:,}", training_loss(data, n, f"loss-{n}")) for n in largest)],
        ),
        (
            "target",
            "To a target accuracy",
            [
                _row(
                    (title, reached_by_batch(data, quantity, title, f"target-{name}"))
                    for quantity, title, name in (
                        ("trained_s", "training time (s)", "time"),
                        ("epochs", "epochs", "epochs"),
                        ("updates", "updates", "updates"),
                    )
                )
            ],
        ),
    )
    found = [
        Section(name=name, title=title, rows=tuple(row for row in rows if row))
        for name, title, rows in made
    ]
    return tuple(section for section in found if section.rows)


def _leading(data: LargeBatchStudyData) -> Row | None:
    row = _row(
        [
            ("accuracy", accuracy_by_batch(data, "accuracy")),
            ("generalisation gap", gap_by_batch(data, "gap")),
        ]
    )
    return row and replace(
        row,
        title="Accuracy and generalisation gap against batch",
        caption=" ".join(panel.figure.caption for panel in row.panels),
    )


def _row(drawn: Iterable[Drawn]) -> Row | None:
    panels = tuple(Panel(label=label, figure=figure) for label, figure in drawn if figure)
    if not panels:
        return None
    first = panels[0].figure
    return Row(title=first.title, caption=first.caption, panels=panels)


def _lead(data: LargeBatchStudyData, where: str) -> str:
    measures = data.measures
    completed = sum(measure.status == "completed" for measure in measures.runs)
    diverged = sum(len(cell.diverged) for cell in data.cells)
    parts = [f"{completed} of {len(measures.runs)} runs completed"]
    parts += [f"{diverged} diverged"] if diverged else []
    workloads = {(s.model, s.dataset) for m in measures.runs if (s := m.setting)}
    parts += [f"{model} on {dataset}" for model, dataset in sorted(workloads)]
    parts += [where] if where else []
    return f"{', '.join(parts)}."
