"""Time and accuracy by batch size."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.scaling import EPOCH_SOURCE, tooltip
from phalanx.report.charts.theme import faded_unless, highlight, strategy_scales, width_dash
from phalanx.report.comparison import Cell, ParallelLayout


def batch_and_time(cells: Sequence[Cell], name: str) -> Figure | None:
    swept = swept_cells(cells)
    rows = cell_rows(swept)
    if not rows:
        return None
    y = alt.Y("epoch_s:Q", title="time of an epoch (s)", scale=alt.Scale(zero=True))
    return figure(
        _lines(rows, y),
        rows,
        name=name,
        title="Batch size and epoch time",
        caption="Median epoch at each global batch size, for configurations tried at several.",
        source=EPOCH_SOURCE,
        runs=[measure.name for cell in swept for measure in cell.runs],
    )


def batch_and_accuracy(cells: Sequence[Cell], name: str) -> Figure | None:
    swept = swept_cells(cells)
    rows = [row for row in cell_rows(swept) if row["accuracy"] is not None]
    if not rows:
        return None
    axis = alt.Axis(format=".1%", tickMinStep=0.001)
    scale = alt.Scale(zero=False)
    y = alt.Y("accuracy:Q", title="final validation accuracy", axis=axis, scale=scale)
    return figure(
        _lines(rows, y),
        rows,
        name=name,
        title="Batch size and accuracy",
        caption="After the last epoch, mean over seeds.",
        source="evaluation events: correct, samples of all ranks",
        runs=[measure.name for cell in swept for measure in cell.runs],
    )


def swept_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose configuration was run with more than one batch size."""
    sizes: dict[tuple[object, ...], set[int]] = {}
    for cell in cells:
        sizes.setdefault(_split(cell.layout), set()).add(cell.layout.batch_size)
    return [cell for cell in cells if len(sizes[_split(cell.layout)]) > 1]


def _split(layout: ParallelLayout) -> tuple[object, ...]:
    return layout.strategy, layout.ranks, layout.threads, layout.batch_per_rank


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    sizes = sorted({int(str(row["batch_size"])) for row in rows})
    picked = highlight("strategy", "strategy_picked")
    x = alt.X(
        "batch_size:Q",
        title="batch size (images, logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=14),
        axis=alt.Axis(values=sizes, format="d"),
    )
    base = alt.Chart(table()).encode(
        x=x, y=y, color=strategy_scales(rows)["color"], opacity=faded_unless(picked)
    )
    lines = base.mark_line(strokeWidth=2).encode(
        detail="configuration:N", strokeDash=width_dash(rows)
    )
    marks = base.mark_point(size=85, filled=True, stroke="var(--surface)", strokeWidth=1.2)
    marks = marks.encode(shape=strategy_scales(rows)["shape"], tooltip=tooltip())
    return alt.layer(lines, marks.add_params(picked))
