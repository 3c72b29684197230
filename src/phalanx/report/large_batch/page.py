"""The parts of the page of a large-batch study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from phalanx.report.charts.figure import Figure
from phalanx.report.content import Content, KeyFigure, machine
from phalanx.report.large_batch.charts import (
    accuracy_by_batch,
    gap_by_batch,
    reached_by_batch,
    training_loss,
)
from phalanx.report.large_batch.findings import findings, headline
from phalanx.report.large_batch.holding import MARGIN, furthest_by_remedy
from phalanx.report.large_batch.material import KIND, Material, read_material
from phalanx.report.large_batch.tables import remedies, times
from phalanx.report.sections import Panel, Row, Section
from phalanx.report.tables import environments, executions
from phalanx.report.topic import Topic
from phalanx.report.wording import percent

LOSS_PANELS = 4
"""The largest batches: at small ones all remedies are much the same."""
KEY_FIGURES = 3

Drawn = tuple[str, Figure | None]


def large_batch_content(folder: Path) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_material(folder))


def content_of(material: Material) -> Content:
    """Return the content of a large-batch study's page."""
    measures = material.measures
    known = [measure.run.environment for measure in measures.runs if measure.run]
    topics: tuple[Topic, ...] = findings(material)
    return Content(
        title=measures.study.study,
        kind=KIND,
        started_at=measures.study.started_at,
        command=measures.study.command,
        headline=headline(material),
        lead=_lead(material, machine(known)),
        key_figures=key_figures(material),
        leading=_leading(material),
        topics=topics,
        sections=sections(material),
        tables=[
            table
            for table in (remedies(material), times(material), executions(measures.runs))
            if table.rows
        ],
        environment=environments(known),
        num_subjects=2,
    )


def key_figures(material: Material) -> list[KeyFigure]:
    """The largest batch of each remedy that holds the accuracy, the largest first."""
    furthest = sorted(furthest_by_remedy(material), key=lambda cell: -cell.batch_size)
    return [
        KeyFigure(
            label=cell.remedy,
            value=f"{cell.batch_size:,}",
            meaning=f"largest batch up to which the accuracy holds, to {MARGIN * 100:g} points",
            beside=percent(cell.accuracy.mean, 2) if cell.accuracy else "",
        )
        for cell in furthest[:KEY_FIGURES]
    ]


def sections(material: Material) -> tuple[Section, ...]:
    """All charts that the records allow."""
    largest = material.batch_sizes[1:][-LOSS_PANELS:]
    made = (
        (
            "loss",
            "Training loss, with and without warm-up",
            [_row((f"batch {n:,}", training_loss(material, n, f"loss-{n}")) for n in largest)],
        ),
        (
            "target",
            "To a target accuracy",
            [
                _row(
                    (title, reached_by_batch(material, quantity, title, f"target-{name}"))
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


def _leading(material: Material) -> Row | None:
    row = _row(
        [
            ("accuracy", accuracy_by_batch(material, "accuracy")),
            ("generalisation gap", gap_by_batch(material, "gap")),
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


def _lead(material: Material, where: str) -> str:
    measures = material.measures
    completed = sum(measure.status == "completed" for measure in measures.runs)
    diverged = sum(len(cell.diverged) for cell in material.cells)
    parts = [f"{completed} of {len(measures.runs)} runs completed"]
    parts += [f"{diverged} diverged"] if diverged else []
    subjects = {(s.model, s.dataset) for m in measures.runs if (s := m.setting)}
    parts += [f"{model} on {dataset}" for model, dataset in sorted(subjects)]
    parts += [where] if where else []
    return f"{', '.join(parts)}."
