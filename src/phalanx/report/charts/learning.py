"""Learning curves: validation against wall-clock time, and time against accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows, epoch_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.scaling import tooltip
from phalanx.report.charts.theme import (
    faded_unless,
    highlight,
    is_wide,
    strategy_scales,
    time_axis,
    time_scale,
    time_title,
    width_dash,
)
from phalanx.report.comparison import Cell
from phalanx.report.measures import RunMeasure

NARROWEST_ACCURACY = 0.005  # half a percentage point
SOURCE = "evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s"


def validation_loss(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    rows = [row for row in epoch_rows(runs) if row["validation_loss"] is not None]
    if not rows:
        return None
    losses = [float(str(row["validation_loss"])) for row in rows]
    scale = alt.Scale(type="log") if is_wide(losses) else alt.Scale(zero=False)
    return figure(
        _curves(rows, alt.Y("validation_loss:Q", title="validation loss", scale=scale)),
        rows,
        name=name,
        title="Validation loss against time",
        caption="A mark an epoch, mean over seeds; training time only, evaluation left out.",
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
        axis=alt.Axis(format=".1%", tickMinStep=0.001),
    )
    return figure(
        _curves(rows, accuracy),
        rows,
        name=name,
        title="Validation accuracy against time",
        caption="A mark an epoch, mean over seeds; training time only, evaluation left out.",
        source=SOURCE,
        runs=[measure.name for measure in runs],
    )


def time_and_accuracy(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["accuracy"] is not None]
    if len(rows) < 2:
        return None
    picked = highlight("strategy", "strategy_picked")
    times_s = [cell.epoch_s for cell in cells]
    x = alt.X(
        "epoch_s:Q",
        title=time_title("time of an epoch", times_s),
        scale=time_scale(times_s, from_zero=False),
        axis=time_axis(times_s),
    )
    scale = alt.Scale(domain=accuracy_domain(cells), nice=False)
    axis = alt.Axis(format=".2%", tickMinStep=0.0001)
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
    return figure(
        alt.layer(spread, marks.add_params(picked)),
        rows,
        name=name,
        title="Epoch time against accuracy",
        caption="Up and to the left is better; the bar runs from the worst seed to the best.",
        source=SOURCE,
        runs=[measure.name for cell in cells for measure in cell.runs],
    )


def accuracy_domain(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return an axis domain that covers all seeds, wide enough that noise is no trend."""
    known = [cell.accuracy for cell in cells if cell.accuracy]
    low, high = min(spread.low for spread in known), max(spread.high for spread in known)
    middle, half = (low + high) / 2, max((high - low) * 0.6, NARROWEST_ACCURACY / 2)
    return middle - half, middle + half


def _curves(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    strategy = highlight("strategy", "strategy_picked")
    width = highlight("width", "width_picked")
    times_s = [float(str(row["trained_s"])) for row in rows]
    ends_s = _ends(rows)
    axis = time_axis(times_s) if is_wide(ends_s) else alt.Axis()
    scale = alt.Scale(type="log") if is_wide(ends_s) else alt.Scale()
    base = alt.Chart(table()).encode(
        x=alt.X("trained_s:Q", title=time_title("training time", ends_s), scale=scale, axis=axis),
        y=y,
        color=strategy_scales(rows)["color"],
        opacity=faded_unless(strategy, width),
    )
    lines = base.mark_line(strokeWidth=1.8).encode(detail="curve:N", strokeDash=width_dash(rows))
    marks = base.mark_point(size=42, filled=True).encode(
        shape=strategy_scales(rows)["shape"],
        tooltip=[
            alt.Tooltip("curve:N"),
            alt.Tooltip("configuration:N"),
            alt.Tooltip("status:N"),
            alt.Tooltip("epoch:Q"),
            alt.Tooltip("trained_s:Q", title="training time (s)", format=",.4~f"),
            alt.Tooltip("validation_loss:Q", title="validation loss", format=".5f"),
            alt.Tooltip("validation_accuracy:Q", title="validation accuracy", format=".2%"),
        ],
    )
    return alt.layer(lines.add_params(width), marks.add_params(strategy))


def _ends(rows: Sequence[Row]) -> list[float]:
    """Return the end of each curve."""
    ends = {str(row["curve"]): float(str(row["trained_s"])) for row in rows}
    return list(ends.values())
