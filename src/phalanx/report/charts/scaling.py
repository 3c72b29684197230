"""Scaling with the number of ranks: speed-up, efficiency, epoch time, share of communication."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.theme import (
    faded_unless,
    highlight,
    strategy_scales,
    time_axis,
    time_scale,
    time_title,
    worker_axis,
)
from phalanx.report.comparison import TIMES, Cell, counted

EPOCH_SOURCE = "epoch events: train_s of the slowest rank"
COMMUNICATION_SOURCE = "step events: communication_s; epoch events: train_s"


def speed_up(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["speed_up"] is not None]
    if len(rows) < 2:
        return None
    lines = _lines(rows, alt.Y("speed_up:Q", title="speed-up, T(1) \N{DIVISION SIGN} T(p)"))
    return figure(
        alt.layer(*_core_limit(rows), _ideal(rows, "datum.workers"), lines),
        rows,
        name=name,
        title="Speed-up",
        caption="How many times as fast as the sequential program with one thread; "
        "the dashed line is the ideal.",
        source=EPOCH_SOURCE,
        runs=_runs(cells),
    )


def efficiency(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["efficiency"] is not None]
    if len(rows) < 2:
        return None
    lines = _lines(rows, alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%")))
    return figure(
        alt.layer(*_core_limit(rows), _ideal(rows, "1"), lines),
        rows,
        name=name,
        title="Efficiency",
        caption=f"Speed-up divided by ranks {TIMES} threads; 100 % is the ideal.",
        source=EPOCH_SOURCE,
        runs=_runs(cells),
    )


def epoch_time(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = cell_rows(cells)
    if len(rows) < 2:
        return None
    times_s = [cell.epoch_s for cell in cells]
    scale = time_scale(times_s, from_zero=True)
    title = time_title("time of an epoch", times_s)
    y = alt.Y("epoch_s:Q", title=title, scale=scale, axis=time_axis(times_s))
    return figure(
        alt.layer(*_core_limit(rows), _slowest_to_fastest(rows, scale), _lines(rows, y)),
        rows,
        name=name,
        title="Epoch time",
        caption="Median over epochs and seeds; the bar runs from the fastest epoch to the slowest.",
        source=EPOCH_SOURCE,
        runs=_runs(cells),
    )


def communication_share(cells: Sequence[Cell], name: str) -> Figure | None:
    spread = [cell for cell in cells if cell.layout.strategy != "sequential"]
    rows = [row for row in cell_rows(spread) if row["communication_share"] is not None]
    if len(rows) < 2:
        return None
    axis = alt.Axis(format="%")
    share = alt.Y("communication_share:Q", title="share of training time", axis=axis)
    base = alt.Chart(table()).encode(x=worker_axis(rows, "ranks"), y=share)
    return figure(
        _joined_marks(base, rows, "strategy:N"),
        rows,
        name=name,
        title="Share of communication",
        caption="Part of the training time that ranks waited for gradients, mean over ranks.",
        source=COMMUNICATION_SOURCE,
        runs=_runs(spread),
    )


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    """A line a strategy, over the number of workers, with a mark at every configuration."""
    base = alt.Chart(table()).encode(x=worker_axis(rows), y=y)
    lines = _joined_marks(base, rows, "line:N")
    several = [row for row in rows if row["strategy"] != "sequential" and row["threads"] != 1]
    if not several:
        return lines
    # Distinguish ranks with several threads from as many ranks with one thread.
    labels = base.transform_filter("datum.strategy != 'sequential' && datum.threads > 1")
    labels = labels.mark_text(align="right", dx=-9, dy=4, fontSize=11)
    labels = labels.encode(text="width:N", color=alt.value("var(--ink-soft)"))
    return alt.layer(lines, labels)


def _joined_marks(base: alt.Chart, rows: Sequence[Row], joined: str) -> AnyChart:
    """Marks with tooltips, and lines through those that have the field `joined` in common."""
    picked = highlight("strategy", "strategy_picked")
    base = base.encode(color=strategy_scales(rows)["color"], opacity=faded_unless(picked))
    lines = base.mark_line(strokeWidth=2).encode(detail=joined)
    marks = base.mark_point(size=90, filled=True, stroke="var(--surface)", strokeWidth=1.2)
    marks = marks.encode(shape=strategy_scales(rows)["shape"], tooltip=tooltip())
    return alt.layer(lines, marks.add_params(picked))


def _slowest_to_fastest(rows: Sequence[Row], scale: alt.Scale) -> AnyChart:
    bars = alt.Chart(table()).mark_rule(strokeWidth=1.5)
    spread: AnyChart = bars.encode(
        x=worker_axis(rows),
        y=alt.Y("epoch_s_low:Q", scale=scale),
        y2="epoch_s_high:Q",
        color=strategy_scales(rows)["color"],
    )
    return spread


def _core_limit(rows: Sequence[Row]) -> list[AnyChart]:
    """Draw the number of cores, when there are configurations beyond it."""
    if not any(int(str(row["workers"])) > int(str(row["cores"])) for row in rows):
        return []
    beyond = alt.Chart(table()).transform_filter("datum.workers > datum.cores")
    limit = beyond.transform_aggregate(cores="min(cores)")
    text = counted(min(int(str(row["cores"])) for row in rows), "core")
    x = worker_axis(rows, "cores")
    rule = limit.mark_rule(color="var(--axis)", strokeWidth=1).encode(x=x)
    label = limit.mark_text(align="center", baseline="bottom", dy=-5, fontSize=11).encode(
        x=x, y=alt.value(0), text=alt.value(text), color=alt.value("var(--ink-soft)")
    )
    return [alt.layer(rule, label)]


def _ideal(rows: Sequence[Row], y: str) -> AnyChart:
    """The ideal as a function of the number of workers."""
    base = alt.Chart(table()).transform_calculate(ideal=y)
    line = base.mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    at_end = base.transform_filter(f"datum.workers == {max(int(str(r['workers'])) for r in rows)}")
    at_end = at_end.transform_aggregate(groupby=["workers", "ideal"])
    text = at_end.mark_text(align="right", dx=-8, dy=-7, color="var(--ink-soft)", fontSize=12)
    where = {"x": worker_axis(rows), "y": alt.Y("ideal:Q")}
    return alt.layer(line.encode(**where), text.encode(**where, text=alt.value("ideal")))


def tooltip() -> list[alt.Tooltip]:
    """Exact values of a configuration."""
    return [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("batch:N"),
        alt.Tooltip("epoch_s:Q", title="epoch (s)", format=",.4~f"),
        alt.Tooltip("images_per_s:Q", title="images/s", format=",.0f"),
        alt.Tooltip("speed_up:Q", title="speed-up", format=".3f"),
        alt.Tooltip("efficiency:Q", format=".1%"),
        alt.Tooltip("communication_share:Q", title="communication", format=".1%"),
        alt.Tooltip("accuracy:Q", format=".2%"),
        alt.Tooltip("seeds:Q"),
    ]


def _runs(cells: Sequence[Cell]) -> list[str]:
    return [measure.name for cell in cells for measure in cell.runs]
