"""Times and losses of the schemes, and of the network from scratch, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, distinct, figure, numbers, table
from phalanx.report.charts.scaling import EPOCH_SOURCE
from phalanx.report.charts.shapes import AROUND_BARS_PIXELS, dashed, lines, names_axis
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
from phalanx.report.parallelism.chart_rows import loss_rows, scratch_rows, time_rows
from phalanx.report.parallelism.study_data import ModelData, ParallelCell, names_of

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


def overview(model: ModelData, name: str) -> Figure | None:
    """Every scheme, the fastest first; a mark for each number of ranks."""
    rows = sorted(time_rows(model.cells), key=lambda row: float(str(row["epoch_s"])))
    if len(rows) < 2:
        return None
    times_s = numbers(rows, "epoch_s")
    x = time_axis(alt.X, "epoch_s", "time of an epoch", times_s, zero=True)
    x["axis"] = log_ticks(times_s) if is_wide(times_s) else alt.Axis()
    x["axis"]["grid"] = True
    layers: list[AnyChart] = [_dots(rows, x)]
    if model.sequential:
        alone = alt.Chart(table()).transform_filter("datum.strategy == 'sequential'")
        layers.insert(0, dashed(alone).encode(x=x))
    return figure(
        alt.layer(*layers),
        rows,
        name=name,
        title="Time of an epoch, every scheme",
        caption="The fastest first; shapes tell the number of ranks. The dashed line is the "
        "sequential program: what is to its left is faster.",
        source=EPOCH_SOURCE,
        runs=names_of(model.cells),
        height_pixels=len(distinct(rows, "strategy")) * SCHEME_PIXELS + AROUND_BARS_PIXELS,
    )


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


def speed_up(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    """A line a scheme, both axes logarithmic: schemes far below the ideal stay apart."""
    rows = [row for row in time_rows(cells) if row["speed_up"] is not None]
    if len(rows) < 2:
        return None
    x = counts_axis(rows, "ranks", "ranks")
    y = alt.Y(
        "speed_up:Q",
        title="speed-up, T(1) \N{DIVISION SIGN} T(p) (logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=8, nice=False),
        axis=alt.Axis(values=[2.0**power for power in range(-8, 9)], format="~r"),
    )
    ideal = alt.Chart(table()).mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    return figure(
        alt.layer(
            ideal.encode(x=x, y=alt.Y("ranks:Q")), lines(x, y, strategy_series(rows), TOOLTIP)
        ),
        rows,
        name=name,
        title="Speed-up",
        caption="How many times as fast as the sequential program; the dashed line is the ideal, "
        "as many times as there are ranks.",
        source=EPOCH_SOURCE,
        runs=names_of(cells),
        height_pixels=TALL_PIXELS,
    )


def loss_by_step(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    x = alt.X("step:Q", title="step", scale=alt.Scale(nice=False))
    x["axis"] = alt.Axis(tickMinStep=1, format="d")
    return _loss(cells, x, name=name, title="Loss against step", remark="")


def loss_by_time(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    times_s = numbers(loss_rows(cells), "trained_s") or [0.0]
    x = time_axis(alt.X, "trained_s", "training time", times_s, nice=False)
    remark = ", one slower than the other"
    return _loss(cells, x, name=name, title="Loss against time", remark=remark)


def _loss(
    cells: Sequence[ParallelCell], x: alt.X, *, name: str, title: str, remark: str
) -> Figure | None:
    rows = loss_rows(cells)
    if not rows:
        return None
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
    return figure(
        drawn.add_params(picked),
        rows,
        name=name,
        title=title,
        caption="Over all ranks, before the update, neighbouring steps averaged; each scheme on "
        "its largest number of ranks. Lines of schemes that make the same update lie on each "
        f"other{remark}.",
        source="step events of all ranks: loss_sum, samples, and the five times",
        runs=names_of(cell for cell in cells if cell.detail.num_steps),
    )


def epoch_by_workers(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = scratch_rows(cells)
    times_s = numbers(rows, "epoch_s")
    if len(rows) < 2:
        return None
    return _by_workers(
        cells,
        rows,
        time_axis(alt.Y, "epoch_s", "time of an epoch", times_s, zero=True),
        name=name,
        title="From scratch: time of an epoch by workers",
        caption="A line for each width of the hidden layers; one worker is one process without "
        "communication. Servers are not counted as workers.",
        source=EPOCH_SOURCE,
    )


def loss_by_workers(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = [row for row in scratch_rows(cells) if row["loss"] is not None]
    if len(rows) < 2:
        return None
    losses = numbers(rows, "loss")
    # Level lines are to look level: rounding in the tenth digit must not fill the axis.
    around = max(max(losses) - min(losses), 0.05 * max(losses))
    middle = (max(losses) + min(losses)) / 2
    scale = alt.Scale(domain=[middle - around, middle + around], nice=False)
    return _by_workers(
        cells,
        rows,
        alt.Y("loss:Q", title="validation loss", scale=scale, axis=alt.Axis(format=".3f")),
        name=name,
        title="From scratch: loss by workers",
        caption="After the last epoch. All schemes make the same update of the same global batch: "
        "lines are level but for rounding.",
        source="evaluation events: loss_sum, samples of all ranks",
    )


def _by_workers(
    cells: Sequence[ParallelCell], rows: Sequence[Row], y: alt.Y, **text: Any
) -> Figure:
    hidden = numbered_series("hidden", distinct(rows, "hidden"), "hidden")
    tooltip = tooltips(
        *("scheme", "hidden", "workers:Q", "epoch_s|epoch (s)|,.4~f", "waiting||.1%"),
        *("loss||.4f", "accuracy||.2%"),
    )
    x = counts_axis(rows, "workers", "workers")
    drawn = lines(x, y, hidden, tooltip, dash=hidden.dash)
    return figure(drawn, rows, runs=names_of(cells), **text)
