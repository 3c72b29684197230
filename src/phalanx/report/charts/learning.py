"""What is learned in which time: validation against wall-clock, and time against accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.look import (
    LOG_FROM_RATIO,
    faded_unless,
    highlight,
    strategy_scales,
    worker_dash,
)
from phalanx.report.charts.rows import cell_rows, epoch_rows
from phalanx.report.charts.scaling import tooltip
from phalanx.report.comparison import Cell
from phalanx.report.measures import RunMeasure

SOURCE = "evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s"


def validation_loss(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    rows = [row for row in epoch_rows(runs) if row["validation_loss"] is not None]
    if not rows:
        return None
    losses = [float(str(row["validation_loss"])) for row in rows]
    wide = min(losses) > 0 and max(losses) / min(losses) > LOG_FROM_RATIO
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    return figure(
        _curves(rows, alt.Y("validation_loss:Q", title="validation loss", scale=scale)),
        rows,
        name=name,
        title="Validation loss against time",
        caption="A line a run, a mark an epoch; training time only, evaluation left out.",
        source=SOURCE,
        runs=[measure.name for measure in runs],
    )


def validation_accuracy(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    rows = [row for row in epoch_rows(runs) if row["validation_accuracy"] is not None]
    if not rows:
        return None
    accuracy = alt.Y(
        "validation_accuracy:Q",
        title="validation accuracy",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(format=".1%"),
    )
    return figure(
        _curves(rows, accuracy),
        rows,
        name=name,
        title="Validation accuracy against time",
        caption="A line a run, a mark an epoch; training time only, evaluation left out.",
        source=SOURCE,
        runs=[measure.name for measure in runs],
    )


def time_and_accuracy(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["accuracy"] is not None]
    if len(rows) < 2:
        return None
    picked = highlight("strategy", "strategy_picked")
    scale = alt.Scale(zero=False, padding=18)
    x = alt.X("epoch_s:Q", title="time of an epoch (s)", scale=scale)
    axis = alt.Axis(format=".2%")
    y = alt.Y("accuracy:Q", title="final validation accuracy", scale=scale, axis=axis)
    base = alt.Chart(table()).encode(
        x=x, y=y, opacity=faded_unless(picked), color=strategy_scales(rows)["color"]
    )
    spread = base.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("accuracy_low:Q", scale=scale), y2="accuracy_high:Q"
    )
    marks = base.mark_point(size=85, filled=True, stroke="var(--surface)", strokeWidth=1.2).encode(
        shape=strategy_scales(rows)["shape"], tooltip=tooltip()
    )
    labels = base.mark_text(align="left", dx=8, dy=-6, fontSize=11).encode(
        text="workers:Q", color=alt.value("var(--ink-soft)")
    )
    return figure(
        alt.layer(spread, marks.add_params(picked), labels),
        rows,
        name=name,
        title="Epoch time against accuracy",
        caption="Up and to the left is better. The number is ranks \N{MULTIPLICATION SIGN} "
        "threads; the bar runs from the worst seed to the best.",
        source=SOURCE,
        runs=[measure.name for cell in cells for measure in cell.runs],
    )


def _curves(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    strategy = highlight("strategy", "strategy_picked")
    workers = highlight("workers", "workers_picked")
    base = alt.Chart(table()).encode(
        x=alt.X("trained_s:Q", title="training time (s)"),
        y=y,
        color=strategy_scales(rows)["color"],
        opacity=faded_unless(strategy, workers),
    )
    lines = base.mark_line(strokeWidth=1.8).encode(detail="run:N", strokeDash=worker_dash(rows))
    marks = base.mark_point(size=42, filled=True).encode(
        shape=strategy_scales(rows)["shape"],
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("configuration:N"),
            alt.Tooltip("status:N"),
            alt.Tooltip("seed:Q"),
            alt.Tooltip("epoch:Q"),
            alt.Tooltip("trained_s:Q", title="training time (s)", format=",.4~f"),
            alt.Tooltip("validation_loss:Q", title="validation loss", format=".5f"),
            alt.Tooltip("validation_accuracy:Q", title="validation accuracy", format=".2%"),
        ],
    )
    return alt.layer(lines.add_params(workers), marks.add_params(strategy))
