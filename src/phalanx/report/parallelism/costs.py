"""Charts of the schemes' costs: waiting, bytes, memory, staleness, a pipeline's step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Row, distinct, table
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
from phalanx.report.comparison import runs_of
from phalanx.report.parallelism.chart_rows import (
    action_rows,
    byte_rows,
    memory_rows,
    staleness_rows,
    waiting_rows,
)
from phalanx.report.parallelism.study_data import ParallelCell

COST_PIXELS = 24
STATES = {"parameters": "--forward", "gradients": "--backward", "optimizer": "--optimizer"}
ACTIONS = {
    "forward": "--forward",
    "backward": "--backward",
    "input gradient": "--backward",
    "weight gradient": "--optimizer",
}
NUMBER_FROM_SHARE = 0.022  # of the step; shorter actions get no number


def _bars(rows: Sequence[Row], field: str, title: str, *details: str, **more: Any) -> AnyChart:
    """Bars with words at their ends."""
    tooltip = tooltips("configuration", f"words|{title}", *details)
    return bars_with_words(rows, field, title, by="bar", tooltip=tooltip, grid=True, **more)


def _draw_memory(rows: Sequence[Row]) -> AnyChart:
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
    return alt.layer(parts, *strokes, words(whole, "all_mb", scale))


def _draw_staleness(_: Sequence[Row]) -> AnyChart:
    chart = alt.Chart(table()).mark_bar(cornerRadiusEnd=2, color="var(--rank-3)")
    drawn: AnyChart = chart.encode(
        x=alt.X(
            "staleness:O",
            title="updates of others between reading and writing",
            axis=alt.Axis(labelAngle=0, labelOverlap=True),
        ),
        y=alt.Y("share:Q", title="share of updates", axis=alt.Axis(format="%")),
        tooltip=tooltips("staleness:O", "updates||,d", "share||.1%"),
    )
    return drawn


def _draw_pipeline(rows: Sequence[Row]) -> AnyChart:
    kinds = {kind: ACTIONS[kind] for kind in ACTIONS if kind in distinct(rows, "kind")}
    pieces: dict[str, Any] = {
        "by": "row",
        "ends": ("begin_ms", "end_ms"),
        "kinds": kinds,
        "kind": "kind",
        "order": distinct(sorted(rows, key=lambda row: int(str(row["stage"]))), "row"),
    }
    tooltip = tooltips(
        *("row|stage", "kind", "micro_batch:Q|micro-batch", "begin_ms|from (ms)|,.3f"),
        "end_ms|to (ms)|,.3f",
    )
    bars = spans(rows, "time of a step (ms)", picked=False, tooltip=tooltip, **pieces)
    shown = f"datum.share >= {NUMBER_FROM_SHARE}"
    return alt.layer(bars, span_text(rows, text="micro_batch:Q", shown=shown, **pieces))


_bar_chart = partial(
    Chart[Sequence[ParallelCell]],
    runs=runs_of,
    height=lambda rows: bars_height(rows, "bar", COST_PIXELS),
)
SENT = _bar_chart(
    title="Bytes sent, counted and by formula",
    caption="Bars are counted, the upright stroke is the formula; = says that both are the "
    "same on every rank. Of the rank that sends the most; the number of ranks in brackets.",
    source="epoch events: sent_bytes; started events: expected.sent_bytes",
    rows=byte_rows,
    draw=lambda rows: _bars(
        rows,
        "sent_mb",
        "MB that the busiest rank sends in a step",
        *("formula_mb|formula (MB)|,.6~f", "formula"),
        colour="--forward",
        formula="formula_mb",
    ),
)
MEMORY = _bar_chart(
    title="Memory for training, measured and by formula",
    caption="Parameters, gradients and optimizer state of the rank that keeps the most; the "
    "upright stroke is the formula. The number of ranks in brackets.",
    source="memory events; started events: expected.state_bytes",
    rows=memory_rows,
    draw=_draw_memory,
)
WAITING = _bar_chart(
    title="Share of waiting",
    caption="Communication that a step waited for \N{DIVISION SIGN} training time, mean over "
    "the ranks that train. What sharded and split models exchange within their forward and "
    "backward passes counts as computing. The number of ranks in brackets.",
    source="step events: communication_s; epoch events: train_s",
    rows=waiting_rows,
    draw=lambda rows: _bars(
        rows, "waiting", "share of the training time", colour="--communication", format="%"
    ),
)
STALENESS = Chart(
    title="Staleness",
    caption="How old the parameters were that an update was computed from; 0 is what a "
    "synchronous scheme has.",
    source="epoch events: staleness",
    rows=staleness_rows,
    runs=lambda cell: runs_of([cell]),
    draw=_draw_staleness,
)
PIPELINE = Chart(
    title="Pipelines, as they ran",
    caption="The shortest of the recorded steps; numbers are micro-batches. White is waiting: "
    "for a neighbour, a message or, where ranks share cores, a core. The shares above each "
    "chart are the idle part of the step, measured and by the formula of the schedule.",
    source="action events: stage, micro_batch, kind, began_s, ended_s",
    rows=action_rows,
    runs=lambda cell: runs_of([cell]),
    draw=_draw_pipeline,
    height=lambda rows: bars_height(rows, "row"),
)
