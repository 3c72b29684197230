"""Accuracy, loss and time by the size of the batch, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.records import divergence
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.theme import faded_unless, highlight
from phalanx.report.format import percent
from phalanx.report.large_batch.study_data import BatchCell, LargeBatchStudyData, names_of

ACCURACY_SOURCE = "epoch and evaluation events: correct, samples of all ranks"
LOOKS = {
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


def accuracy_by_batch(data: LargeBatchStudyData, name: str) -> Figure | None:
    rows = batch_rows(data)
    if len(rows) < 2:
        return None
    y = alt.Y(
        "accuracy:Q",
        title="final validation accuracy",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(format=".1%", tickMinStep=0.001),
    )
    return figure(
        _by_batch(rows, y, "accuracy_low:Q", "accuracy_high:Q"),
        rows,
        name=name,
        title="Accuracy against batch, by remedy",
        caption="Mean over seeds; the bar runs from the worst seed to the best. Runs that diverged "
        "are in no mean: the table counts them.",
        source=ACCURACY_SOURCE,
        runs=names_of(data.cells),
    )


def gap_by_batch(data: LargeBatchStudyData, name: str) -> Figure | None:
    rows = [row for row in batch_rows(data) if row["gap"] is not None]
    if len(rows) < 2:
        return None
    y = alt.Y(
        "gap:Q",
        title="training \N{MINUS SIGN} validation accuracy",
        axis=alt.Axis(format=".1%", tickMinStep=0.001),
    )
    return figure(
        _by_batch(rows, y, "gap_low:Q", "gap_high:Q"),
        rows,
        name=name,
        title="Generalisation gap against batch",
        caption="Accuracy of the final model on training data less that on the validation data; "
        "the bar runs from the smallest to the largest of the seeds.",
        source="training evaluation and evaluation events: correct, samples of all ranks",
        runs=names_of(data.cells),
    )


def reached_by_batch(
    data: LargeBatchStudyData, quantity: str, title: str, name: str
) -> Figure | None:
    """quantity: `trained_s`, `epochs` or `updates`."""
    rows = [row for row in batch_rows(data) if row[quantity] is not None]
    if len(rows) < 2 or data.target is None:
        return None
    y = alt.Y(f"{quantity}:Q", title=title, scale=alt.Scale(type="log"))
    return figure(
        _by_batch(rows, y, None, None),
        rows,
        name=name,
        title=f"What it takes to {percent(data.target, 1)} accuracy",
        caption="Training time, epochs and updates; mean over the seeds that reached it, "
        "logarithmic. Where none did there is no mark.",
        source="evaluation events: correct, samples; epoch events: train_s",
        runs=names_of(data.cells),
    )


def training_loss(data: LargeBatchStudyData, batch_size: int, name: str) -> Figure | None:
    """Draw the training loss by epoch, at one batch size."""
    rows = loss_rows(data.at(batch_size))
    if not rows:
        return None
    picked = highlight("strategy", "strategy_picked")
    scales = remedy_scales(rows)
    base = alt.Chart(table()).encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y("train_loss:Q", title="training loss (logarithmic)", scale=alt.Scale(type="log")),
        color=scales["color"],
        opacity=faded_unless(picked),
    )
    warm_up = alt.StrokeDash(
        "warm_up:N",
        title=None,
        scale=alt.Scale(domain=["with warm-up", "without"], range=[[1, 0], [5, 3]]),
        legend=alt.Legend(symbolType="stroke", symbolSize=240, columns=2),
    )
    lines = base.mark_line(strokeWidth=1.8).encode(detail="run:N", strokeDash=warm_up)
    marks = base.mark_point(size=36, filled=True).encode(
        shape=scales["shape"],
        tooltip=[
            alt.Tooltip("strategy:N", title="remedy"),
            alt.Tooltip("run:N"),
            alt.Tooltip("status:N"),
            alt.Tooltip("epoch:Q"),
            alt.Tooltip("train_loss:Q", title="training loss", format=".5f"),
        ],
    )
    return figure(
        alt.layer(lines, marks.add_params(picked)),
        rows,
        name=name,
        title="Training loss by epoch",
        caption="The mean over an epoch while it was trained on; a line a seed. A line that stops "
        f"early has diverged; losses above {HIGHEST_LOSS:g} are drawn there.",
        source="epoch events: loss_sum, samples of all ranks",
        runs=names_of(data.at(batch_size)),
    )


def remedy_scales(rows: Sequence[Row]) -> dict[str, Any]:
    """Colour and shape of the remedies that occur, merged into one legend."""
    present = {str(row["strategy"]) for row in rows}
    domain = [remedy for remedy in LOOKS if remedy in present]
    colours = [f"var({LOOKS[remedy][0]})" for remedy in domain]
    shapes = [LOOKS[remedy][1] for remedy in domain]
    legend = alt.Legend(columns=2)
    return {
        "color": alt.Color(
            "strategy:N", title=None, scale=alt.Scale(domain=domain, range=colours), legend=legend
        ),
        "shape": alt.Shape(
            "strategy:N", title=None, scale=alt.Scale(domain=domain, range=shapes), legend=legend
        ),
    }


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
        for run in (*cell.runs, *cell.diverged)
        for epoch in run.trained
        if epoch.train_loss
    ]


def mean_loss(cell: BatchCell, epoch: int) -> float | None:
    """Return the training loss of an epoch, the mean of the seeds that finished it."""
    losses = [
        e.train_loss
        for run in (*cell.runs, *cell.diverged)
        for e in run.trained
        if e.epoch == epoch and e.train_loss is not None
    ]
    return divergence.mean_loss(sum(losses), len(losses)) if losses else None


def _by_batch(rows: Sequence[Row], y: alt.Y, low: str | None, high: str | None) -> AnyChart:
    sizes = sorted({int(str(row["batch_size"])) for row in rows})
    picked = highlight("strategy", "strategy_picked")
    scales = remedy_scales(rows)
    base = alt.Chart(table()).encode(
        x=alt.X(
            "batch_size:Q",
            title="batch (samples, logarithmic)",
            scale=alt.Scale(type="log", base=2, padding=14),
            axis=alt.Axis(values=sizes, format="d"),
        ),
        y=y,
        color=scales["color"],
        opacity=faded_unless(picked),
    )
    marks = base.mark_point(size=85, filled=True, stroke="var(--surface)", strokeWidth=1.2)
    layers: list[Any] = [base.mark_line(strokeWidth=1.8)]
    if low and high:
        layers.append(base.mark_rule(strokeWidth=1.5).encode(y=alt.Y(low), y2=high.split(":")[0]))
    marked = marks.encode(shape=scales["shape"], tooltip=_tooltip())
    return alt.layer(*layers, marked.add_params(picked))


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("strategy:N", title="remedy"),
        alt.Tooltip("batch_size:Q", title="batch", format=","),
        alt.Tooltip("learning_rate:Q", title="learning rate", format=".4~g"),
        alt.Tooltip("accuracy:Q", format=".2%"),
        alt.Tooltip("accuracy_low:Q", title="worst seed", format=".2%"),
        alt.Tooltip("accuracy_high:Q", title="best seed", format=".2%"),
        alt.Tooltip("gap:Q", format=".2%"),
        alt.Tooltip("seeds:Q"),
        alt.Tooltip("diverged:Q"),
        alt.Tooltip("epochs:Q", title="epochs to the target", format=".1f"),
        alt.Tooltip("updates:Q", title="updates to it", format=",.0f"),
        alt.Tooltip("trained_s:Q", title="seconds to it", format=",.3~f"),
    ]
