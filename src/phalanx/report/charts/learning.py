"""Learning curves: validation against wall-clock time, time against accuracy, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows, epoch_rows, metric_rows, rank_rows
from phalanx.report.charts.figure import AnyChart, Chart, Row, distinct, numbers, table
from phalanx.report.charts.scaling import TOOLTIP
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
from phalanx.report.comparison import runs_of
from phalanx.report.measures import RunMeasure

NARROWEST_ACCURACY = 0.005  # half a percentage point
MOST_EPOCH_TICKS = 12


def accuracy_domain(rows: Sequence[Row]) -> tuple[float, float]:
    """Return an axis domain that covers all seeds, wide enough that noise is no trend."""
    low, high = min(numbers(rows, "accuracy_low")), max(numbers(rows, "accuracy_high"))
    middle, half = (low + high) / 2, max((high - low) * 0.6, NARROWEST_ACCURACY / 2)
    return middle - half, middle + half


def _curves(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    ends_s = list({row["curve"]: float(str(row["trained_s"])) for row in rows}.values())
    x = time_axis(alt.X, "trained_s", "training time", ends_s)
    if is_wide(ends_s):
        x["axis"] = log_ticks(numbers(rows, "trained_s"))
    tooltip = tooltips(
        *("curve", "configuration", "status", "epoch:Q", "trained_s|training time (s)|,.4~f"),
        *("train_loss|training loss|.5f", "validation_loss|validation loss|.5f"),
        "validation_accuracy|validation accuracy|.2%",
    )
    series, dash = strategy_series(rows), width_dash(rows)
    return lines(x, y, series, tooltip, detail="curve:N", dash=dash, also_picked=["width"])


def _loss(rows: Sequence[Row], data: str = "validation") -> alt.Y:
    field = "train_loss" if data == "training" else "validation_loss"
    values = numbers(rows, field)
    is_log = min(values) > 0 and is_wide(values)
    scale = alt.Scale(type="log") if is_log else alt.Scale(zero=False)
    return alt.Y(f"{field}:Q", title=f"{data} loss", scale=scale)


def _draw_time_and_accuracy(rows: Sequence[Row]) -> AnyChart:
    times_s = numbers(rows, "epoch_s")
    x = time_axis(alt.X, "epoch_s", "time of an epoch", times_s, zero=False, nice=False, padding=18)
    y = alt.Y(
        "accuracy:Q",
        title="final validation accuracy",
        scale=alt.Scale(domain=accuracy_domain(rows), nice=False),
        axis=alt.Axis(format=".2%", tickMinStep=0.0001),
    )
    spread = ("accuracy_low", "accuracy_high")
    return lines(x, y, strategy_series(rows), TOOLTIP, spread=spread, joined=False)


def _metrics(rows: Sequence[Row]) -> AnyChart:
    choice = alt.binding_select(options=distinct(rows, "metric"), name="Metric ")
    shown = alt.param(name="metric_shown", value=str(rows[0]["metric"]), bind=choice)
    chosen = alt.Chart(table()).transform_filter("datum.metric === metric_shown")
    x = alt.X("step:Q", title="updates", scale=alt.Scale(zero=False, padding=12))
    y = alt.Y("value:Q", title="value", scale=alt.Scale(zero=False))
    tooltip = tooltips("run", "configuration", "metric", "step:Q", "value||.6~g")
    base, dash = chosen.add_params(shown), width_dash(rows)
    return lines(x, y, strategy_series(rows), tooltip, detail="run:N", dash=dash, base=base)


def _on_several_ranks(runs: Sequence[RunMeasure]) -> list[RunMeasure]:
    return [measure for measure in runs if len(measure.ranks) > 1 and measure.trained]


def _chosen_run(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    # The run on the most ranks is shown at first, of several the first.
    shown_first = max(rows, key=lambda row: int(str(row["ranks"])))["run"]
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


EVALUATIONS = "evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s"
RunChart = Chart[Sequence[RunMeasure]]
_curve = partial(
    RunChart,
    caption="One mark per epoch, mean over seeds; training time only, evaluation left out.",
    source=EVALUATIONS,
    rows=epoch_rows,
    runs=lambda runs: [measure.name for measure in runs],
)
TRAINING_LOSS = _curve(
    title="Training loss against time",
    field="train_loss",
    draw=lambda rows: _curves(rows, _loss(rows, "training")),
)
METRICS = RunChart(
    title="Metrics of the program",
    caption="Values of run.log over the updates, a line a run. Choose a metric below the chart.",
    source="metrics events of rank 0",
    rows=metric_rows,
    runs=lambda runs: [measure.name for measure in runs],
    draw=_metrics,
)
VALIDATION_LOSS = _curve(
    title="Validation loss against time",
    field="validation_loss",
    draw=lambda rows: _curves(rows, _loss(rows)),
)
VALIDATION_ACCURACY = _curve(
    title="Validation accuracy against time",
    field="validation_accuracy",
    draw=lambda rows: _curves(rows, accuracy_axis("validation_accuracy", "validation accuracy")),
)
TIME_AND_ACCURACY = Chart(
    title="Epoch time against accuracy",
    caption="Up and to the left is better; the bar runs from the worst seed to the best.",
    source=EVALUATIONS,
    rows=cell_rows,
    runs=runs_of,
    field="accuracy",
    least=2,
    draw=_draw_time_and_accuracy,
)
_by_rank = partial(
    RunChart,
    caption="Each rank over its own part of the training data. Choose a run below the chart.",
    source="epoch events of each rank: loss_sum, correct, samples",
    rows=lambda runs: rank_rows(_on_several_ranks(runs)),
    runs=lambda runs: [measure.name for measure in _on_several_ranks(runs)],
)
RANK_LOSS = _by_rank(
    title="Training loss, rank by rank",
    draw=lambda rows: _chosen_run(
        rows, alt.Y("train_loss:Q", title="training loss", scale=alt.Scale(zero=False))
    ),
)
RANK_ACCURACY = _by_rank(
    title="Training accuracy, rank by rank",
    field="train_accuracy",
    draw=lambda rows: _chosen_run(rows, accuracy_axis("train_accuracy", "training accuracy")),
)
