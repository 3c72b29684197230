"""The page of a large-batch study: what it is made of."""

from __future__ import annotations

from phalanx.report.content import Content, KeyFigure, chart_row, sections, with_rows
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import percent
from phalanx.report.large_batch.accuracy_comparison import MARGIN, largest_holding_by_remedy
from phalanx.report.large_batch.charts import (
    ACCURACY_BY_BATCH,
    GAP_BY_BATCH,
    TRAINING_LOSS,
    reached_by_batch,
)
from phalanx.report.large_batch.findings import findings, headline
from phalanx.report.large_batch.study_data import LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.tables import remedies, times
from phalanx.report.study_content import outcomes, study_content
from phalanx.report.tables import executions

LOSS_PANELS = 4
"""The largest batches: at small ones all remedies are much the same."""
KEY_FIGURES = 3
TO_TARGET = (
    ("trained_s", "training time (s)", "time"),
    ("epochs", "epochs", "epochs"),
    ("updates", "updates", "updates"),
)


def large_batch_content(measures: StudyMeasures) -> Content:
    """Raises: UserError when the records cannot be read."""
    return content_of(read_study_data(measures.folder, measures))


def content_of(data: LargeBatchStudyData) -> Content:
    """Return the content of a large-batch study's page."""
    runs = data.measures.runs
    diverged = sum(len(cell.diverged) for cell in data.cells)
    workloads = {f"{s.model} on {s.dataset}" for run in runs if (s := run.setting)}
    largest = data.batch_sizes[1:][-LOSS_PANELS:]
    return study_content(
        data.measures.study,
        outcomes(data.measures),
        headline=headline(data),
        facts=[*([f"{diverged} diverged"] if diverged else []), *sorted(workloads)],
        key_figures=key_figures(data),
        leading=chart_row(
            [
                ("accuracy", ACCURACY_BY_BATCH(data, "accuracy")),
                ("generalisation gap", GAP_BY_BATCH(data, "gap")),
            ],
            title="Accuracy and generalisation gap against batch",
        ),
        topics=findings(data),
        sections=sections(
            (
                "loss",
                "Training loss, with and without warm-up",
                [
                    chart_row(
                        (f"batch {n:,}", TRAINING_LOSS(data.at(n), f"loss-{n}")) for n in largest
                    )
                ],
            ),
            (
                "target",
                "To a target accuracy",
                [
                    chart_row(
                        (title, reached_by_batch(data, quantity, title, f"target-{name}"))
                        for quantity, title, name in TO_TARGET
                    )
                ],
            ),
        ),
        tables=with_rows(remedies(data), times(data), executions(runs)),
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
