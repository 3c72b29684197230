"""Times and losses of the schemes, and of the network from scratch, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Row, distinct, numbers, table
from phalanx.report.charts.shapes import bars_height, dashed, lines, names_axis
from phalanx.report.charts.theme import (
    counts_axis,
    faded_unless,
    highlight,
    is_wide,
    known_series,
    log_ticks,
    numbered_series,
    strategy_series,
    time_axis,
    tooltips,
)
from phalanx.report.comparison import runs_of
from phalanx.report.parallelism.chart_rows import loss_rows, scratch_rows, time_rows
from phalanx.report.parallelism.study_data import ParallelCell, largest
from phalanx.report.training_page import EPOCH_SOURCE

SCHEME_PIXELS = 24
TALL_PIXELS = 300
GROUP_LOOKS = {
    "sequential": ("--sequential", ""),
    "summed gradients": ("--mpi", ""),
    "servers, local steps": ("--rank-3", ""),
    "sharded state": ("--rank-2", ""),
    "split layers, pipelines": ("--gloo", ""),
}
TOOLTIP = tooltips(
    *("configuration", "epoch_s|epoch (s)|,.4~f", "step_ms|step (ms)|,.4~f"),
    *("speed_up|speed-up|.3f", "waiting||.1%", "loss||.4f", "accuracy||.2%"),
)


def _draw_overview(rows: Sequence[Row]) -> AnyChart:
    times_s = numbers(rows, "epoch_s")
    x = time_axis(alt.X, "epoch_s", "time of an epoch", times_s, zero=True)
    x["axis"] = log_ticks(times_s) if is_wide(times_s) else alt.Axis()
    x["axis"]["grid"] = True
    layers: list[AnyChart] = [_dots(rows, x)]
    if any(row["strategy"] == "sequential" for row in rows):
        alone = alt.Chart(table()).transform_filter("datum.strategy == 'sequential'")
        layers.insert(0, dashed(alone).encode(x=x))
    return alt.layer(*layers)


def _dots(rows: Sequence[Row], x: alt.X) -> alt.Chart:
    groups = known_series("group", rows, GROUP_LOOKS)
    ranks = numbered_series("ranks", sorted({int(n) for n in numbers(rows, "ranks")}), "ranks")
    picked = highlight("group")
    y = names_axis(rows, "strategy")
    y["axis"]["grid"] = True
    dots: alt.Chart = (
        alt.Chart(table())
        .mark_point(size=100, filled=True, stroke="var(--surface)", strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=groups.color,
            shape=ranks.shape,
            opacity=faded_unless(picked),
            tooltip=TOOLTIP,
        )
        .add_params(picked)
    )
    return dots


def _draw_speed_up(rows: Sequence[Row]) -> AnyChart:
    """Both axes logarithmic: schemes far below the ideal stay apart."""
    x = counts_axis(rows, "ranks", "ranks")
    y = alt.Y(
        "speed_up:Q",
        title="speed-up, T(1) \N{DIVISION SIGN} T(p) (logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=8, nice=False),
        axis=alt.Axis(values=[2.0**power for power in range(-8, 9)], format="~r"),
    )
    ideal = alt.Chart(table()).mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    drawn = lines(x, y, strategy_series(rows), TOOLTIP)
    return alt.layer(ideal.encode(x=x, y=alt.Y("ranks:Q")), drawn)


def _draw_loss(rows: Sequence[Row], x: alt.X) -> AnyChart:
    wide = is_wide(numbers(rows, "loss"))
    y = alt.Y(
        "loss:Q",
        title="training loss (logarithmic)" if wide else "training loss",
        scale=alt.Scale(type="log") if wide else alt.Scale(zero=False),
    )
    series, picked = strategy_series(rows), highlight("strategy")
    tooltip = tooltips("configuration", "step:Q", "trained_s|time (s)|,.4~f", "loss||.5f")
    drawn = alt.Chart(table()).mark_line(strokeWidth=1.8)
    drawn = drawn.encode(
        x=x,
        y=y,
        color=series.color,
        strokeDash=series.dash,
        opacity=faded_unless(picked),
        tooltip=tooltip,
    )
    loss: AnyChart = drawn.add_params(picked)
    return loss


def _draw_loss_by_step(rows: Sequence[Row]) -> AnyChart:
    x = alt.X("step:Q", title="step", scale=alt.Scale(nice=False))
    x["axis"] = alt.Axis(tickMinStep=1, format="d")
    return _draw_loss(rows, x)


def _draw_loss_by_time(rows: Sequence[Row]) -> AnyChart:
    times_s = numbers(rows, "trained_s")
    return _draw_loss(rows, time_axis(alt.X, "trained_s", "training time", times_s, nice=False))


def _by_workers(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    hidden = numbered_series("hidden", distinct(rows, "hidden"), "hidden")
    tooltip = tooltips(
        *("scheme", "hidden", "workers:Q", "epoch_s|epoch (s)|,.4~f", "waiting||.1%"),
        *("loss||.4f", "accuracy||.2%"),
    )
    return lines(counts_axis(rows, "workers", "workers"), y, hidden, tooltip, dash=hidden.dash)


def _draw_loss_by_workers(rows: Sequence[Row]) -> AnyChart:
    losses = numbers(rows, "loss")
    # Level lines are to look level: rounding in the tenth digit must not fill the axis.
    around = max(max(losses) - min(losses), 0.05 * max(losses))
    middle = (max(losses) + min(losses)) / 2
    scale = alt.Scale(domain=[middle - around, middle + around], nice=False)
    y = alt.Y("loss:Q", title="validation loss", scale=scale, axis=alt.Axis(format=".3f"))
    return _by_workers(rows, y)


SchemeChart = Chart[Sequence[ParallelCell]]
_chart = partial(SchemeChart, runs=runs_of)
OVERVIEW = _chart(
    title="Time of an epoch, every scheme",
    caption="The fastest first; shapes tell the number of ranks. The dashed line is the "
    "sequential program: what is to its left is faster.",
    source=EPOCH_SOURCE,
    rows=lambda cells: sorted(time_rows(cells), key=lambda row: float(str(row["epoch_s"]))),
    least=2,
    draw=_draw_overview,
    height=lambda rows: bars_height(rows, "strategy", SCHEME_PIXELS),
)
SPEED_UP = _chart(
    title="Speed-up",
    caption="How many times as fast as the sequential program; the dashed line is the ideal, "
    "as many times as there are ranks.",
    source=EPOCH_SOURCE,
    rows=time_rows,
    field="speed_up",
    least=2,
    draw=_draw_speed_up,
    height=TALL_PIXELS,
)
LOSS = (
    "Over all ranks, before the update, neighbouring steps averaged; each scheme on its largest "
    "number of ranks. Lines of schemes that make the same update lie on each other"
)
_loss = partial(
    SchemeChart,
    source="step events of all ranks: loss_sum, samples, and the five times",
    rows=lambda cells: loss_rows(largest(cells)),
    runs=lambda cells: runs_of([cell for cell in largest(cells) if cell.detail.num_steps]),
)
LOSS_BY_STEP = _loss(title="Loss against step", caption=f"{LOSS}.", draw=_draw_loss_by_step)
LOSS_BY_TIME = _loss(
    title="Loss against time",
    caption=f"{LOSS}, one slower than the other.",
    draw=_draw_loss_by_time,
)
EPOCH_BY_WORKERS = _chart(
    title="From scratch: time of an epoch by workers",
    caption="A line for each width of the hidden layers; one worker is one process without "
    "communication. Servers are not counted as workers.",
    source=EPOCH_SOURCE,
    rows=scratch_rows,
    least=2,
    draw=lambda rows: _by_workers(
        rows, time_axis(alt.Y, "epoch_s", "time of an epoch", numbers(rows, "epoch_s"), zero=True)
    ),
)
LOSS_BY_WORKERS = _chart(
    title="From scratch: loss by workers",
    caption="After the last epoch. All schemes make the same update of the same global batch: "
    "lines are level but for rounding.",
    source="evaluation events: loss_sum, samples of all ranks",
    rows=scratch_rows,
    field="loss",
    least=2,
    draw=_draw_loss_by_workers,
)
