"""What more ranks bring: speed-up, efficiency, epoch time, share of communication."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.look import (
    LOG_FROM_RATIO,
    faded_unless,
    highlight,
    strategy_scales,
    worker_axis,
)
from phalanx.report.charts.rows import cell_rows
from phalanx.report.comparison import Cell

EPOCH_SOURCE = "epoch events: train_s of the slowest rank"
COMMUNICATION_SOURCE = "step events: communication_s; epoch events: train_s"
SPREAD_WIDTH_PIXELS = 1.5


def speed_up(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["speed_up"] is not None]
    if len(rows) < 2:
        return None
    lines = _lines(rows, alt.Y("speed_up:Q", title="speed-up, T(1) \N{DIVISION SIGN} T(p)"))
    return figure(
        alt.layer(_ideal(rows, "datum.workers", "ideal"), lines),
        rows,
        name=name,
        title="Speed-up",
        caption="How many times as fast as the sequential program with one thread; "
        "the grey line is the ideal.",
        source=EPOCH_SOURCE,
        runs=_runs(cells),
    )


def efficiency(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["efficiency"] is not None]
    if len(rows) < 2:
        return None
    lines = _lines(rows, alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%")))
    return figure(
        alt.layer(_ideal(rows, "1", "ideal"), lines),
        rows,
        name=name,
        title="Efficiency",
        caption="Speed-up divided by ranks \N{MULTIPLICATION SIGN} threads; 100 % is the ideal.",
        source=EPOCH_SOURCE,
        runs=_runs(cells),
    )


def epoch_time(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = cell_rows(cells)
    if not rows:
        return None
    times_s = [cell.epoch_s for cell in cells]
    wide = max(times_s) / min(times_s) > LOG_FROM_RATIO
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=True)
    y = alt.Y("epoch_s:Q", title="time of an epoch (s)", scale=scale)
    spread = (
        alt.Chart(table())
        .mark_rule(strokeWidth=SPREAD_WIDTH_PIXELS)
        .encode(
            x=worker_axis(rows),
            y=alt.Y("epoch_s_low:Q", scale=scale),
            y2="epoch_s_high:Q",
            color=strategy_scales(rows)["color"],
        )
    )
    return figure(
        alt.layer(spread, _lines(rows, y)),
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
    if not rows:
        return None
    axis = alt.Axis(format="%")
    share = alt.Y("communication_share:Q", title="share of training time", axis=axis)
    return figure(
        _lines(rows, share),
        rows,
        name=name,
        title="Share of communication",
        caption="Part of the training time that ranks waited for gradients, mean over ranks.",
        source=COMMUNICATION_SOURCE,
        runs=_runs(spread),
    )


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    """A line a strategy, over the number of workers, with a mark at every configuration."""
    picked = highlight("strategy", "strategy_picked")
    base = alt.Chart(table()).encode(
        x=worker_axis(rows),
        y=y,
        color=strategy_scales(rows)["color"],
        opacity=faded_unless(picked),
        tooltip=tooltip(),
    )
    lines = base.mark_line(strokeWidth=2).encode(detail="line:N", tooltip=alt.value(None))
    marks = base.mark_point(size=85, filled=True, stroke="var(--surface)", strokeWidth=1.2)
    marks = marks.encode(shape=strategy_scales(rows)["shape"])
    return alt.layer(lines, marks.add_params(picked))


def _ideal(rows: Sequence[Row], y: str, label: str) -> AnyChart:
    """The ideal as a function of the number of workers."""
    base = alt.Chart(table()).transform_calculate(ideal=y)
    line = base.mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    at_end = base.transform_filter(f"datum.workers == {max(int(str(r['workers'])) for r in rows)}")
    text = at_end.mark_text(align="right", dx=-8, dy=-7, color="var(--ink-soft)", fontSize=12)
    where = {"x": worker_axis(rows), "y": alt.Y("ideal:Q")}
    return alt.layer(line.encode(**where), text.encode(**where, text=alt.value(label)))


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
