"""Learning curves: validation against wall-clock time, time against accuracy, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows, epoch_rows, rank_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, distinct, figure, numbers, table
from phalanx.report.charts.scaling import TOOLTIP, runs_of
from phalanx.report.charts.shapes import lines
from phalanx.report.charts.theme import (
    accuracy_axis,
    is_wide,
    log_ticks,
    numbered_series,
    strategy_series,
    time_axis,
    tooltips,
    width_dash,
)
from phalanx.report.comparison import Cell
from phalanx.report.measures import RunMeasure

NARROWEST_ACCURACY = 0.005  # half a percentage point
MOST_EPOCH_TICKS = 12


def validation_loss(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    rows = [row for row in epoch_rows(runs) if row["validation_loss"] is not None]
    wide = bool(rows) and is_wide(numbers(rows, "validation_loss"))
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    y = alt.Y("validation_loss:Q", title="validation loss", scale=scale)
    return _curves(rows, y, runs, name=name, title="Validation loss against time")


def validation_accuracy(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    rows = [row for row in epoch_rows(runs) if row["validation_accuracy"] is not None]
    y = accuracy_axis("validation_accuracy", "validation accuracy")
    return _curves(rows, y, runs, name=name, title="Validation accuracy against time")


def time_and_accuracy(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["accuracy"] is not None]
    if len(rows) < 2:
        return None
    times_s = [cell.epoch_s for cell in cells]
    x = time_axis(alt.X, "epoch_s", "time of an epoch", times_s, zero=False, nice=False, padding=18)
    y = alt.Y(
        "accuracy:Q",
        title="final validation accuracy",
        scale=alt.Scale(domain=accuracy_domain(cells), nice=False),
        axis=alt.Axis(format=".2%", tickMinStep=0.0001),
    )
    spread = ("accuracy_low", "accuracy_high")
    return figure(
        lines(x, y, strategy_series(rows), TOOLTIP, spread=spread, joined=False),
        rows,
        name=name,
        title="Epoch time against accuracy",
        caption="Up and to the left is better; the bar runs from the worst seed to the best.",
        source="evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s",
        runs=runs_of(cells),
    )


def accuracy_domain(cells: Sequence[Cell]) -> tuple[float, float]:
    """Return an axis domain that covers all seeds, wide enough that noise is no trend."""
    known = [cell.accuracy for cell in cells if cell.accuracy]
    low, high = min(spread.low for spread in known), max(spread.high for spread in known)
    middle, half = (low + high) / 2, max((high - low) * 0.6, NARROWEST_ACCURACY / 2)
    return middle - half, middle + half


def _curves(
    rows: Sequence[Row], y: alt.Y, runs: Sequence[RunMeasure], *, name: str, title: str
) -> Figure | None:
    if not rows:
        return None
    ends_s = list({row["curve"]: float(str(row["trained_s"])) for row in rows}.values())
    x = time_axis(alt.X, "trained_s", "training time", ends_s)
    if is_wide(ends_s):
        x["axis"] = log_ticks(numbers(rows, "trained_s"))
    tooltip = tooltips(
        *("curve", "configuration", "status", "epoch:Q", "trained_s|training time (s)|,.4~f"),
        *("validation_loss|validation loss|.5f", "validation_accuracy|validation accuracy|.2%"),
    )
    return figure(
        lines(
            x,
            y,
            strategy_series(rows),
            tooltip,
            detail="curve:N",
            dash=width_dash(rows),
            also_picked=["width"],
        ),
        rows,
        name=name,
        title=title,
        caption="A mark an epoch, mean over seeds; training time only, evaluation left out.",
        source="evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s",
        runs=[measure.name for measure in runs],
    )


def rank_loss(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    y = alt.Y("train_loss:Q", title="training loss", scale=alt.Scale(zero=False))
    return _by_rank(runs, y, name=name, title="Training loss, rank by rank")


def rank_accuracy(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    y = accuracy_axis("train_accuracy", "training accuracy")
    return _by_rank(runs, y, name=name, title="Training accuracy, rank by rank")


def _by_rank(runs: Sequence[RunMeasure], y: alt.Y, *, name: str, title: str) -> Figure | None:
    spread = [measure for measure in runs if len(measure.ranks) > 1 and measure.trained]
    rows = rank_rows(spread)
    if not rows:
        return None
    return figure(
        # The run on the most ranks is shown at first, of several the first.
        _chosen_run(rows, y, max(spread, key=lambda measure: len(measure.ranks)).name),
        rows,
        name=name,
        title=title,
        caption="Each rank over its own part of the training data. Choose a run below the chart.",
        source="epoch events of each rank: loss_sum, correct, samples",
        runs=[measure.name for measure in spread],
    )


def _chosen_run(rows: Sequence[Row], y: alt.Y, shown_first: str) -> AnyChart:
    choice = alt.binding_select(options=distinct(rows, "run"), name="Run ")
    shown = alt.param(name="run_shown", value=shown_first, bind=choice)
    epochs = sorted({int(number) for number in numbers(rows, "epoch")})
    ticks: dict[str, Any] = {"values": epochs} if len(epochs) <= MOST_EPOCH_TICKS else {}
    x = alt.X(
        "epoch:Q",
        title="epoch",
        axis=alt.Axis(format="d", **ticks),
        scale=alt.Scale(zero=False, padding=12),
    )
    ranks = range(int(max(numbers(rows, "rank"))) + 1)
    tooltip = tooltips(
        *("run", "rank", "epoch:Q", "samples||,d", "train_loss|training loss|.5f"),
        *("train_accuracy|training accuracy|.2%", "train_s|epoch (s)|,.4~f"),
    )
    chosen = alt.Chart(table()).transform_filter("datum.run === run_shown").add_params(shown)
    return lines(x, y, numbered_series("rank", list(ranks), "rank"), tooltip, base=chosen)
