"""Charts of the schemes' costs: waiting, bytes, memory, staleness, a pipeline's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import Figure, distinct, figure, table
from phalanx.report.charts.shapes import (
    bars_height,
    bars_with_words,
    formula_strokes,
    names_axis,
    span_text,
    spans,
    words,
    words_scale,
)
from phalanx.report.charts.theme import tooltips
from phalanx.report.parallelism.chart_rows import (
    action_rows,
    byte_rows,
    memory_rows,
    staleness_rows,
    waiting_rows,
)
from phalanx.report.parallelism.rank_details import pipeline_step
from phalanx.report.parallelism.study_data import ParallelCell, names_of

COST_PIXELS = 24
STATES = {"parameters": "--forward", "gradients": "--backward", "optimizer": "--optimizer"}
ACTIONS = {
    "forward": "--forward",
    "backward": "--backward",
    "input gradient": "--backward",
    "weight gradient": "--optimizer",
}
NUMBER_FROM_SHARE = 0.022  # of the step; shorter actions get no number


def sent(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = byte_rows(cells)
    if not rows:
        return None
    title = "MB that the busiest rank sends in a step"
    tooltip = tooltips(
        *("configuration", f"words|{title}", "formula_mb|formula (MB)|,.6~f", "formula")
    )
    return figure(
        bars_with_words(
            rows,
            "sent_mb",
            title,
            by="bar",
            tooltip=tooltip,
            colour="--forward",
            formula="formula_mb",
            grid=True,
        ),
        rows,
        name=name,
        title="Bytes sent, counted and by formula",
        caption="Bars are counted, the upright stroke is the formula; = says that both are the "
        "same on every rank. Of the rank that sends the most; the number of ranks in brackets.",
        source="epoch events: sent_bytes; started events: expected.sent_bytes",
        runs=names_of(cells),
        height_pixels=bars_height(rows, "bar", COST_PIXELS),
    )


def memory(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = memory_rows(cells)
    if not rows:
        return None
    scale = words_scale(rows, "all_mb", "formula_mb")
    parts = spans(
        rows,
        "MB of a rank",
        by="bar",
        ends=("begin_mb", "end_mb"),
        kinds=STATES,
        kind="part",
        scale=scale,
        tooltip=tooltips(
            *("configuration", "part", "part_mb|MB|,.4~f", "all_mb|together (MB)|,.4~f"),
            *("formula_mb|formula (MB)|,.4~f", "formula"),
        ),
    )
    whole = alt.Chart(table()).transform_filter("datum.part == 'optimizer'")
    whole = whole.encode(y=names_axis(rows, "bar"))
    strokes = formula_strokes(whole, rows, "formula_mb", scale)
    return figure(
        alt.layer(parts, *strokes, words(whole, "all_mb", scale)),
        rows,
        name=name,
        title="Memory for training, measured and by formula",
        caption="Parameters, gradients and optimizer state of the rank that keeps the most; the "
        "upright stroke is the formula. The number of ranks in brackets.",
        source="memory events; started events: expected.state_bytes",
        runs=names_of(cells),
        height_pixels=bars_height(rows, "bar", COST_PIXELS),
    )


def waiting(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = waiting_rows(cells)
    if not rows:
        return None
    title = "share of the training time"
    tooltip = tooltips("configuration", f"words|{title}")
    return figure(
        bars_with_words(
            rows,
            "waiting",
            title,
            by="bar",
            tooltip=tooltip,
            colour="--communication",
            grid=True,
            format="%",
        ),
        rows,
        name=name,
        title="Share of waiting",
        caption="Communication that a step waited for \N{DIVISION SIGN} training time, mean over "
        "the ranks that train. What sharded and split models exchange within their forward and "
        "backward passes counts as computing. The number of ranks in brackets.",
        source="step events: communication_s; epoch events: train_s",
        runs=names_of(cells),
        height_pixels=bars_height(rows, "bar", COST_PIXELS),
    )


def staleness(cell: ParallelCell, name: str) -> Figure | None:
    rows = staleness_rows(cell)
    if not rows:
        return None
    chart = alt.Chart(table()).mark_bar(cornerRadiusEnd=2, color="var(--rank-3)")
    chart = chart.encode(
        x=alt.X(
            "staleness:O",
            title="updates of others between reading and writing",
            axis=alt.Axis(labelAngle=0, labelOverlap=True),
        ),
        y=alt.Y("share:Q", title="share of updates", axis=alt.Axis(format="%")),
        tooltip=tooltips("staleness:O", "updates||,d", "share||.1%"),
    )
    return figure(
        chart,
        rows,
        name=name,
        title="Staleness",
        caption="How old the parameters were that an update was computed from; 0 is what a "
        "synchronous scheme has.",
        source="epoch events: staleness",
        runs=names_of([cell]),
    )


def pipeline(cell: ParallelCell, name: str) -> Figure | None:
    """Draw one recorded step as it happened, a row for each stage."""
    step = pipeline_step(cell.detail)
    if step is None:
        return None
    rows = action_rows(step)
    kinds = {kind: ACTIONS[kind] for kind in ACTIONS if kind in distinct(rows, "kind")}
    order = distinct(sorted(rows, key=lambda row: int(str(row["stage"]))), "row")
    ends = ("begin_ms", "end_ms")
    bars = spans(
        rows,
        "time of a step (ms)",
        by="row",
        ends=ends,
        kinds=kinds,
        kind="kind",
        order=order,
        picked=False,
        tooltip=tooltips(
            *("row|stage", "kind", "micro_batch:Q|micro-batch", "begin_ms|from (ms)|,.3f"),
            "end_ms|to (ms)|,.3f",
        ),
    )
    shown = f"datum.share >= {NUMBER_FROM_SHARE}"
    inks: dict[str, Any] = {
        "by": "row",
        "ends": ends,
        "kinds": kinds,
        "kind": "kind",
        "order": order,
    }
    return figure(
        alt.layer(bars, span_text(rows, text="micro_batch:Q", shown=shown, **inks)),
        rows,
        name=name,
        title="Pipelines, as they ran",
        caption="The shortest of the recorded steps; numbers are micro-batches. White is waiting: "
        "for a neighbour, a message or, where ranks share cores, a core. The shares above each "
        "chart are the idle part of the step, measured and by the formula of the schedule.",
        source="action events: stage, micro_batch, kind, began_s, ended_s",
        runs=names_of([cell]),
        height_pixels=bars_height(rows, "row"),
    )
