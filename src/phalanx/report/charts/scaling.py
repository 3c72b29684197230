"""Time by the number of ranks and the size of the batch, and the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows, overlap_rows, part_rows
from phalanx.report.charts.figure import AnyChart, Chart, Row, numbers, table
from phalanx.report.charts.shapes import (
    bars_height,
    dashed_line,
    lines,
    names_axis,
    span_text,
    spans,
)
from phalanx.report.charts.theme import (
    PHASES,
    accuracy_axis,
    counts_axis,
    strategy_series,
    time_axis,
    tooltips,
    width_dash,
    worker_axis,
)
from phalanx.report.comparison import TIMES, Cell, ParallelLayout, counted, runs_of

EPOCH_SOURCE = "epoch events: train_s of the slowest rank"
LETTER_FROM_SHARE = 0.05  # of the longest bar; narrower parts get no letter
OVERLAP_KINDS = {"hidden": "--backward", "exposed": "--communication"}
TOOLTIP = tooltips(
    *("configuration", "batch", "epoch_s|epoch (s)|,.4~f", "images_per_s|samples/s|,.0f"),
    *("speed_up|speed-up|.3f", "efficiency||.1%", "communication_share|communication|.1%"),
    *("accuracy||.2%", "seeds:Q"),
)
"""Exact values of a configuration."""


def swept_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose configuration was run with more than one batch size."""

    def split(layout: ParallelLayout) -> tuple[object, ...]:
        return layout.strategy, layout.ranks, layout.threads, layout.batch_per_rank

    sizes: dict[tuple[object, ...], set[int]] = {}
    for cell in cells:
        sizes.setdefault(split(cell.layout), set()).add(cell.layout.batch_size)
    return [cell for cell in cells if len(sizes[split(cell.layout)]) > 1]


def _split(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells on several processes, which wait for one another."""
    return [cell for cell in cells if not cell.is_sequential]


def _over_batches(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    x = counts_axis(rows, "batch_size", "batch size in images")
    series, dash = strategy_series(rows), width_dash(rows)
    return lines(x, y, series, TOOLTIP, detail="configuration:N", dash=dash)


def _draw_epochs(rows: Sequence[Row]) -> AnyChart:
    y = time_axis(alt.Y, "epoch_s", "time of an epoch", numbers(rows, "epoch_s"), zero=True)
    spread = ("epoch_s_low", "epoch_s_high")
    return alt.layer(*_core_limit(rows), _by_workers(rows, y, spread))


def _draw_parts(rows: Sequence[Row]) -> AnyChart:
    legend = alt.Legend(columns=2, labelExpr="upper(slice(datum.label, 0, 1)) + '  ' + datum.label")
    pieces: dict[str, Any] = {
        "by": "bar",
        "ends": ("start_ms", "end_ms"),
        "kinds": PHASES,
        "kind": "part",
    }
    tooltip = tooltips(
        *("configuration", "part", "part_ms|time (ms)|,.4f", "share|share of the step|.1%")
    )
    bars = spans(rows, "time of a step (ms)", legend=legend, tooltip=tooltip, **pieces)
    shown = f"datum.part_ms >= {LETTER_FROM_SHARE * max(numbers(rows, 'end_ms'))}"
    return alt.layer(bars, span_text(rows, text="letter:N", shown=shown, **pieces))


def _draw_overlap(rows: Sequence[Row]) -> AnyChart:
    bars = spans(
        rows,
        "communication of a step (ms)",
        by="bar",
        ends=("start_ms", "end_ms"),
        kinds=OVERLAP_KINDS,
        kind="kind",
        tooltip=tooltips(
            *("bar|of", "kind", "time_ms|time (ms)|,.4f", "hideable_ms|could be hidden (ms)|,.4f")
        ),
    )
    ceiling = alt.Chart(table()).mark_tick(
        color="var(--ink)", thickness=2, height=alt.RelativeBandSize(band=0.9)
    )
    return alt.layer(bars, ceiling.encode(x="hideable_ms:Q", y=names_axis(rows, "bar")))


def _by_workers(rows: Sequence[Row], y: alt.Y, spread: tuple[str, str] | None = None) -> AnyChart:
    """A line a strategy, over the number of workers, with a mark at every configuration."""
    x = worker_axis(rows)
    drawn = lines(x, y, strategy_series(rows), TOOLTIP, detail="line:N", spread=spread)
    if not any(row["strategy"] != "sequential" and row["threads"] != 1 for row in rows):
        return drawn
    # Distinguish ranks with several threads from as many ranks with one thread.
    labels = alt.Chart(table()).encode(x=x, y=y)
    labels = labels.transform_filter("datum.strategy != 'sequential' && datum.threads > 1")
    labels = labels.mark_text(align="right", dx=-9, dy=4, fontSize=11)
    labels = labels.encode(text="width:N", color=alt.value("var(--ink-soft)"))
    return alt.layer(drawn, labels)


def _core_limit(rows: Sequence[Row]) -> list[AnyChart]:
    """Draw the number of cores, when there are configurations beyond it."""
    if not any(int(str(row["workers"])) > int(str(row["cores"])) for row in rows):
        return []
    beyond = alt.Chart(table()).transform_filter("datum.workers > datum.cores")
    limit = beyond.transform_aggregate(cores="min(cores)")
    text = counted(int(min(numbers(rows, "cores"))), "core")
    x = worker_axis(rows, "cores")
    rule = limit.mark_rule(color="var(--axis)", strokeWidth=1).encode(x=x)
    label = limit.mark_text(align="center", baseline="bottom", dy=-5, fontSize=11).encode(
        x=x, y=alt.value(0), text=alt.value(text), color=alt.value("var(--ink-soft)")
    )
    return [alt.layer(rule, label)]


def _ideal(rows: Sequence[Row], y: str) -> AnyChart:
    """The ideal as a function of the number of workers."""
    base = alt.Chart(table()).transform_calculate(ideal=y)
    base = base.transform_aggregate(groupby=["workers", "ideal"])
    last = f"datum.workers == {max(numbers(rows, 'workers')):g}"
    return dashed_line(base, "ideal", last, {"x": worker_axis(rows), "y": alt.Y("ideal:Q")})


CellChart = Chart[Sequence[Cell]]
_chart = partial(CellChart, runs=runs_of)
SPEED_UP = _chart(
    title="Speed-up",
    caption="How many times as fast as the sequential program with one thread; "
    "the dashed line is the ideal.",
    source=EPOCH_SOURCE,
    rows=cell_rows,
    field="speed_up",
    least=2,
    draw=lambda rows: alt.layer(
        *_core_limit(rows),
        _ideal(rows, "datum.workers"),
        _by_workers(rows, alt.Y("speed_up:Q", title="speed-up, T(1) \N{DIVISION SIGN} T(p)")),
    ),
)
EFFICIENCY = _chart(
    title="Efficiency",
    caption=f"Speed-up divided by ranks {TIMES} threads; 100 % is the ideal.",
    source=EPOCH_SOURCE,
    rows=cell_rows,
    field="efficiency",
    least=2,
    draw=lambda rows: alt.layer(
        *_core_limit(rows),
        _ideal(rows, "1"),
        _by_workers(rows, alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%"))),
    ),
)
EPOCH_TIME = _chart(
    title="Epoch time",
    caption="Median over epochs and seeds; the bar runs from the fastest epoch to the slowest.",
    source=EPOCH_SOURCE,
    rows=cell_rows,
    least=2,
    draw=_draw_epochs,
)
COMMUNICATION_SHARE = CellChart(
    title="Share of communication",
    caption="Part of the training time that ranks waited for gradients, mean over ranks.",
    source="step events: communication_s; epoch events: train_s",
    rows=lambda cells: cell_rows(_split(cells)),
    runs=lambda cells: runs_of(_split(cells)),
    field="communication_share",
    least=2,
    draw=lambda rows: lines(
        worker_axis(rows, "ranks"),
        alt.Y("communication_share:Q", title="share of training time", axis=alt.Axis(format="%")),
        strategy_series(rows),
        TOOLTIP,
        detail="strategy:N",
    ),
)
STEP_PARTS = CellChart(
    title="Where a step\N{RIGHT SINGLE QUOTATION MARK}s time goes",
    caption="A mean step, over ranks and steps: data, forward, backward, communication that "
    "was waited for, optimizer.",
    source="step events: data_s, forward_s, backward_s, communication_s, optimizer_s",
    rows=part_rows,
    runs=lambda cells: runs_of([cell for cell in cells if cell.step_parts_s]),
    draw=_draw_parts,
    height=lambda rows: bars_height(rows, "bar"),
)
HIDDEN_AND_EXPOSED = Chart(
    title="Hidden and exposed communication",
    caption="Of a mean step, over ranks: what went on while backward was computed, and what "
    "was waited for. The tick: how much could be hidden at most, which the last bucket and "
    "the length of the backward pass limit.",
    source="step events: hidden_s, communication_s, last_bucket_s, backward_s",
    rows=overlap_rows,
    runs=lambda runs: [run.name for run in runs if run.run and run.overlap],
    draw=_draw_overlap,
    height=lambda rows: bars_height(rows, "bar"),
)
BATCH_AND_TIME = CellChart(
    title="Batch size and epoch time",
    caption="Median epoch at each global batch size, for configurations tried at several.",
    source=EPOCH_SOURCE,
    rows=lambda cells: cell_rows(swept_cells(cells)),
    runs=lambda cells: runs_of(swept_cells(cells)),
    draw=lambda rows: _over_batches(
        rows, alt.Y("epoch_s:Q", title="time of an epoch (s)", scale=alt.Scale(zero=True))
    ),
)
BATCH_AND_ACCURACY = CellChart(
    title="Batch size and accuracy",
    caption="After the last epoch, mean over seeds.",
    source="evaluation events: correct, samples of all ranks",
    rows=lambda cells: cell_rows(swept_cells(cells)),
    runs=lambda cells: runs_of([cell for cell in swept_cells(cells) if cell.accuracy]),
    field="accuracy",
    draw=lambda rows: _over_batches(rows, accuracy_axis("accuracy", "final validation accuracy")),
)
