"""Accuracy, loss and time by the size of the batch, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Figure, Row
from phalanx.report.charts.shapes import lines
from phalanx.report.charts.theme import accuracy_axis, counts_axis, known_series, tooltips
from phalanx.report.format import percent
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, names_of

REMEDIES = {
    "plain": ("--sequential", "circle"),
    "linear": ("--gloo", "triangle-up"),
    "linear, warm-up": ("--mpi", "square"),
    "square root": ("--rank-4", "stroke"),
    "square root, warm-up": ("--rank-3", "cross"),
    "LARS": ("--rank-2", "diamond"),
    "LAMB": ("--shared", "triangle-down"),
}
"""Colour and shape of each remedy, the same in all charts."""
HIGHEST_LOSS = 10.0
"""Above, the curve of a training that diverges is cut off."""
TOOLTIP = tooltips(
    *("strategy|remedy", "batch_size|batch|,", "learning_rate|learning rate|.4~g"),
    *("accuracy||.2%", "accuracy_low|worst seed|.2%", "accuracy_high|best seed|.2%", "gap||.2%"),
    *("seeds:Q", "diverged:Q", "epochs|epochs to the target|.1f", "updates|updates to it|,.0f"),
    "trained_s|seconds to it|,.3~f",
)


def batch_rows(data: LargeBatchStudyData) -> list[Row]:
    """A row a cell that has an accuracy."""
    rows: list[Row] = []
    for cell in data.cells:
        accuracy, gap, reached = cell.accuracy, cell.gap, data.time_to_target(cell)
        if accuracy is None:
            continue
        rows.append(
            {
                "strategy": cell.remedy,
                "batch_size": cell.batch_size,
                "learning_rate": cell.learning_rate,
                "accuracy": accuracy.mean,
                "accuracy_low": accuracy.low,
                "accuracy_high": accuracy.high,
                "gap": gap.mean if gap else None,
                "gap_low": gap.low if gap else None,
                "gap_high": gap.high if gap else None,
                "seeds": accuracy.seeds,
                "diverged": len(cell.diverged),
                "epochs": reached.epochs,
                "updates": reached.updates,
                "trained_s": reached.trained_s,
            }
        )
    return rows


def loss_rows(cells: Sequence[BatchCell]) -> list[Row]:
    """A row for each epoch of each run."""
    return [
        {
            "strategy": cell.remedy,
            "run": run.name,
            "status": "diverged" if run in cell.diverged else run.status,
            "warm_up": "with warm-up" if cell.has_warm_up else "without",
            "epoch": epoch.epoch + 1,
            "train_loss": min(epoch.train_loss, HIGHEST_LOSS),
        }
        for cell in cells
        for run in cell.all_runs
        for epoch in run.trained
        if epoch.train_loss
    ]


def _by_batch(rows: Sequence[Row], y: alt.Y, spread: tuple[str, str] | None = None) -> AnyChart:
    """A line a remedy."""
    x = counts_axis(rows, "batch_size", "batch in samples")
    return lines(x, y, known_series("strategy", rows, REMEDIES), TOOLTIP, spread=spread)


def _draw_losses(rows: Sequence[Row]) -> AnyChart:
    warm_up = alt.StrokeDash(
        "warm_up:N",
        title=None,
        scale=alt.Scale(domain=["with warm-up", "without"], range=[[1, 0], [5, 3]]),
        legend=alt.Legend(symbolType="stroke", symbolSize=240, columns=2),
    )
    tooltip = tooltips(
        *("strategy|remedy", "run", "status", "epoch:Q", "train_loss|training loss|.5f")
    )
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(format="d", tickMinStep=1))
    scale = alt.Scale(type="log")
    y = alt.Y("train_loss:Q", title="training loss (logarithmic)", scale=scale)
    series = known_series("strategy", rows, REMEDIES)
    return lines(x, y, series, tooltip, detail="run:N", dash=warm_up)


_chart = partial(
    Chart[LargeBatchStudyData], rows=batch_rows, least=2, runs=lambda data: names_of(data.cells)
)
ACCURACY_BY_BATCH = _chart(
    title="Accuracy against batch, by remedy",
    caption="Mean over seeds; the bar runs from the worst seed to the best. Runs that diverged "
    "are in no mean: the table counts them.",
    source="epoch and evaluation events: correct, samples of all ranks",
    field="accuracy",
    draw=lambda rows: _by_batch(
        rows,
        accuracy_axis("accuracy", "final validation accuracy"),
        ("accuracy_low", "accuracy_high"),
    ),
)
GAP_BY_BATCH = _chart(
    title="Generalisation gap against batch",
    caption="Accuracy of the final model on training data less that on the validation data; "
    "the bar runs from the smallest to the largest of the seeds.",
    source="training evaluation and evaluation events: correct, samples of all ranks",
    field="gap",
    draw=lambda rows: _by_batch(
        rows,
        accuracy_axis("gap", "training \N{MINUS SIGN} validation accuracy", zero=True),
        ("gap_low", "gap_high"),
    ),
)
TRAINING_LOSS = Chart(
    title="Training loss by epoch",
    caption="The mean over an epoch while it was trained on; one line per seed. A line that stops "
    f"early has diverged; losses above {HIGHEST_LOSS:g} are drawn there.",
    source="epoch events: loss_sum, samples of all ranks",
    rows=loss_rows,
    runs=names_of,
    draw=_draw_losses,
)


def reached_by_batch(
    data: LargeBatchStudyData, quantity: str, title: str, name: str
) -> Figure | None:
    """quantity: `trained_s`, `epochs` or `updates`."""
    if data.target is None:
        return None
    y = alt.Y(f"{quantity}:Q", title=title, scale=alt.Scale(type="log"))
    chart = _chart(
        title=f"What it takes to {percent(data.target, 1)} accuracy",
        caption="Training time, epochs and updates; mean over the seeds that reached it, "
        "logarithmic. Where none did there is no mark.",
        source="evaluation events: correct, samples; epoch events: train_s",
        field=quantity,
        draw=lambda rows: _by_batch(rows, y),
    )
    return chart(data, name)
