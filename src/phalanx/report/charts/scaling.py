"""Time by the number of ranks and the size of the batch, and the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.chart_rows import cell_rows, overlap_rows, part_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, numbers, table
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
from phalanx.report.comparison import TIMES, Cell, ParallelLayout, counted
from phalanx.report.measures import RunMeasure

EPOCH_SOURCE = "epoch events: train_s of the slowest rank"
LETTER_FROM_SHARE = 0.05  # of the longest bar; narrower parts get no letter
OVERLAP_KINDS = {"hidden": "--backward", "exposed": "--communication"}
TOOLTIP = tooltips(
    *("configuration", "batch", "epoch_s|epoch (s)|,.4~f", "images_per_s|images/s|,.0f"),
    *("speed_up|speed-up|.3f", "efficiency||.1%", "communication_share|communication|.1%"),
    *("accuracy||.2%", "seeds:Q"),
)
"""Exact values of a configuration."""


def speed_up(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["speed_up"] is not None]
    if len(rows) < 2:
        return None
    y = alt.Y("speed_up:Q", title="speed-up, T(1) \N{DIVISION SIGN} T(p)")
    return figure(
        alt.layer(*_core_limit(rows), _ideal(rows, "datum.workers"), _by_workers(rows, y)),
        rows,
        name=name,
        title="Speed-up",
        caption="How many times as fast as the sequential program with one thread; "
        "the dashed line is the ideal.",
        source=EPOCH_SOURCE,
        runs=runs_of(cells),
    )


def efficiency(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = [row for row in cell_rows(cells) if row["efficiency"] is not None]
    if len(rows) < 2:
        return None
    y = alt.Y("efficiency:Q", title="efficiency", axis=alt.Axis(format="%"))
    return figure(
        alt.layer(*_core_limit(rows), _ideal(rows, "1"), _by_workers(rows, y)),
        rows,
        name=name,
        title="Efficiency",
        caption=f"Speed-up divided by ranks {TIMES} threads; 100 % is the ideal.",
        source=EPOCH_SOURCE,
        runs=runs_of(cells),
    )


def epoch_time(cells: Sequence[Cell], name: str) -> Figure | None:
    rows = cell_rows(cells)
    if len(rows) < 2:
        return None
    y = time_axis(alt.Y, "epoch_s", "time of an epoch", [c.epoch_s for c in cells], zero=True)
    spread = ("epoch_s_low", "epoch_s_high")
    return figure(
        alt.layer(*_core_limit(rows), _by_workers(rows, y, spread)),
        rows,
        name=name,
        title="Epoch time",
        caption="Median over epochs and seeds; the bar runs from the fastest epoch to the slowest.",
        source=EPOCH_SOURCE,
        runs=runs_of(cells),
    )


def communication_share(cells: Sequence[Cell], name: str) -> Figure | None:
    spread = [cell for cell in cells if not cell.is_sequential]
    rows = [row for row in cell_rows(spread) if row["communication_share"] is not None]
    if len(rows) < 2:
        return None
    y = alt.Y("communication_share:Q", title="share of training time", axis=alt.Axis(format="%"))
    x = worker_axis(rows, "ranks")
    return figure(
        lines(x, y, strategy_series(rows), TOOLTIP, detail="strategy:N"),
        rows,
        name=name,
        title="Share of communication",
        caption="Part of the training time that ranks waited for gradients, mean over ranks.",
        source="step events: communication_s; epoch events: train_s",
        runs=runs_of(spread),
    )


def step_parts(cells: Sequence[Cell], name: str) -> Figure | None:
    """Time of a step by phase."""
    timed = [cell for cell in cells if cell.step_parts_s]
    rows = part_rows(timed)
    if not rows:
        return None
    legend = alt.Legend(columns=2, labelExpr="upper(slice(datum.label, 0, 1)) + '  ' + datum.label")
    ends = ("start_ms", "end_ms")
    bars = spans(
        rows,
        "time of a step (ms)",
        by="bar",
        ends=ends,
        kinds=PHASES,
        kind="part",
        legend=legend,
        tooltip=tooltips(
            *("configuration", "part", "part_ms|time (ms)|,.4f", "share|share of the step|.1%")
        ),
    )
    shown = f"datum.part_ms >= {LETTER_FROM_SHARE * max(numbers(rows, 'end_ms'))}"
    letters = span_text(
        rows, by="bar", ends=ends, kinds=PHASES, kind="part", text="letter:N", shown=shown
    )
    return figure(
        alt.layer(bars, letters),
        rows,
        name=name,
        title="Where a step\N{RIGHT SINGLE QUOTATION MARK}s time goes",
        caption="A mean step, over ranks and steps: data, forward, backward, communication that "
        "was waited for, optimizer.",
        source="step events: data_s, forward_s, backward_s, communication_s, optimizer_s",
        runs=runs_of(timed),
        height_pixels=bars_height(rows, "bar"),
    )


def hidden_and_exposed(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    """Bars of the runs; of a run by itself those of its epochs."""
    known = [measure for measure in runs if measure.run and measure.overlap]
    rows = overlap_rows(known)
    if not rows:
        return None
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
    return figure(
        alt.layer(bars, ceiling.encode(x="hideable_ms:Q", y=names_axis(rows, "bar"))),
        rows,
        name=name,
        title="Hidden and exposed communication",
        caption="Of a mean step, over ranks: what went on while backward was computed, and what "
        "was waited for. The tick: how much could be hidden at most, which the last bucket and "
        "the length of the backward pass limit.",
        source="step events: hidden_s, communication_s, last_bucket_s, backward_s",
        runs=[measure.name for measure in known],
        height_pixels=bars_height(rows, "bar"),
    )


def batch_and_time(cells: Sequence[Cell], name: str) -> Figure | None:
    y = alt.Y("epoch_s:Q", title="time of an epoch (s)", scale=alt.Scale(zero=True))
    return _by_batch(
        swept_cells(cells),
        y,
        name=name,
        title="Batch size and epoch time",
        caption="Median epoch at each global batch size, for configurations tried at several.",
        source=EPOCH_SOURCE,
    )


def batch_and_accuracy(cells: Sequence[Cell], name: str) -> Figure | None:
    return _by_batch(
        [cell for cell in swept_cells(cells) if cell.accuracy],
        accuracy_axis("accuracy", "final validation accuracy"),
        name=name,
        title="Batch size and accuracy",
        caption="After the last epoch, mean over seeds.",
        source="evaluation events: correct, samples of all ranks",
    )


def swept_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose configuration was run with more than one batch size."""

    def split(layout: ParallelLayout) -> tuple[object, ...]:
        return layout.strategy, layout.ranks, layout.threads, layout.batch_per_rank

    sizes: dict[tuple[object, ...], set[int]] = {}
    for cell in cells:
        sizes.setdefault(split(cell.layout), set()).add(cell.layout.batch_size)
    return [cell for cell in cells if len(sizes[split(cell.layout)]) > 1]


def runs_of(cells: Sequence[Cell]) -> list[str]:
    return [measure.name for cell in cells for measure in cell.runs]


def _by_batch(cells: Sequence[Cell], y: alt.Y, **text: Any) -> Figure | None:
    rows = cell_rows(cells)
    if not rows:
        return None
    x = counts_axis(rows, "batch_size", "batch size in images")
    series, dash = strategy_series(rows), width_dash(rows)
    drawn = lines(x, y, series, TOOLTIP, detail="configuration:N", dash=dash)
    return figure(drawn, rows, runs=runs_of(cells), **text)


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
