"""Charts of the schemes' costs: waiting, bytes, memory and staleness."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.parallelism.chart_rows import (
    byte_rows,
    memory_rows,
    staleness_rows,
    waiting_rows,
)
from phalanx.report.parallelism.study_data import ParallelCell, names_of

BAR_PIXELS = 24
AROUND_BARS_PIXELS = 30
PARTS = {"parameters": "--forward", "gradients": "--backward", "optimizer": "--optimizer"}


def sent(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = byte_rows(cells)
    if not rows:
        return None
    return figure(
        _bars(rows, "sent_mb", "MB that the busiest rank sends in a step", formula=True),
        rows,
        name=name,
        title="Bytes sent, counted and by formula",
        caption="Bars are counted, the upright stroke is the formula; = says that both are the "
        "same on every rank. Of the rank that sends the most; the number of ranks in brackets.",
        source="epoch events: sent_bytes; started events: expected.sent_bytes",
        runs=names_of(cells),
        height_pixels=_height(rows),
    )


def memory(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = memory_rows(cells)
    if not rows:
        return None
    order = _order(rows)
    y = alt.Y("bar:N", title=None, sort=order, axis=alt.Axis(domain=False, labelLimit=250))
    scale = alt.Scale(domain=[0, _room(rows, "all_mb")], nice=False)
    colours = alt.Scale(domain=list(PARTS), range=[f"var({name})" for name in PARTS.values()])
    tooltip = [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("part:N"),
        alt.Tooltip("part_mb:Q", title="MB", format=",.4~f"),
        alt.Tooltip("all_mb:Q", title="together (MB)", format=",.4~f"),
        alt.Tooltip("formula_mb:Q", title="formula (MB)", format=",.4~f"),
        alt.Tooltip("formula:N"),
    ]
    base = alt.Chart(table())
    parts = base.mark_bar(stroke="var(--surface)", strokeWidth=1, height={"band": 0.7}).encode(
        x=alt.X("begin_mb:Q", title="MB of a rank", scale=scale, axis=alt.Axis(grid=True)),
        x2="end_mb:Q",
        y=y,
        color=alt.Color("part:N", title=None, scale=colours),
        tooltip=tooltip,
    )
    whole = base.transform_filter("datum.part == 'optimizer'")
    text = whole.mark_text(align="left", dx=7, fontSize=11, color="var(--ink-soft)").encode(
        x=alt.X("all_mb:Q", scale=scale), y=y, text="words:N"
    )
    return figure(
        alt.layer(parts, *_formula(whole, rows, y, scale), text),
        rows,
        name=name,
        title="Memory for training, measured and by formula",
        caption="Parameters, gradients and optimizer state of the rank that keeps the most; the "
        "upright stroke is the formula. The number of ranks in brackets.",
        source="memory events; started events: expected.state_bytes",
        runs=names_of(cells),
        height_pixels=_height(rows),
    )


def waiting(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = waiting_rows(cells)
    if not rows:
        return None
    return figure(
        _bars(rows, "waiting", "share of the training time", formula=False),
        rows,
        name=name,
        title="Share of waiting",
        caption="Communication that a step waited for \N{DIVISION SIGN} training time, mean over "
        "the ranks that train. What sharded and split models exchange within their forward and "
        "backward passes counts as computing. The number of ranks in brackets.",
        source="step events: communication_s; epoch events: train_s",
        runs=names_of(cells),
        height_pixels=_height(rows),
    )


def staleness(cell: ParallelCell, name: str) -> Figure | None:
    rows = staleness_rows(cell)
    if not rows:
        return None
    bars = (
        alt.Chart(table())
        .mark_bar(cornerRadiusEnd=2, color="var(--rank-3)")
        .encode(
            x=alt.X(
                "staleness:O",
                title="updates of others between reading and writing",
                axis=alt.Axis(labelAngle=0, labelOverlap=True),
            ),
            y=alt.Y("share:Q", title="share of updates", axis=alt.Axis(format="%")),
            tooltip=[
                alt.Tooltip("staleness:O"),
                alt.Tooltip("updates:Q", format=",d"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    return figure(
        bars,
        rows,
        name=name,
        title="Staleness",
        caption="How old the parameters were that an update was computed from; 0 is what a "
        "synchronous scheme has.",
        source="epoch events: staleness",
        runs=names_of([cell]),
    )


def _bars(rows: Sequence[Row], field: str, title: str, *, formula: bool) -> AnyChart:
    """A bar a row with its number in words at its end, and where there is one a stroke at the
    formula."""
    y = alt.Y("bar:N", title=None, sort=_order(rows), axis=alt.Axis(domain=False, labelLimit=250))
    scale = alt.Scale(domain=[0, _room(rows, field)], nice=False)
    axis = alt.Axis(grid=True) if formula else alt.Axis(grid=True, format="%")
    base = alt.Chart(table()).encode(y=y)
    tooltip = [alt.Tooltip("configuration:N"), alt.Tooltip("words:N", title=title)]
    if formula:
        tooltip += [
            alt.Tooltip("formula_mb:Q", title="formula (MB)", format=",.6~f"),
            alt.Tooltip("formula:N"),
        ]
    colour = "var(--forward)" if formula else "var(--communication)"
    bars = base.mark_bar(cornerRadiusEnd=2, height={"band": 0.7}, color=colour).encode(
        x=alt.X(f"{field}:Q", title=title, scale=scale, axis=axis), tooltip=tooltip
    )
    text = base.mark_text(align="left", dx=7, fontSize=11).encode(
        x=alt.X(f"{field}:Q", scale=scale),
        text="words:N",
        color=alt.value("var(--ink-soft)"),
    )
    strokes = _formula(alt.Chart(table()), rows, y, scale) if formula else []
    return alt.layer(bars, *strokes, text)


def _formula(base: alt.Chart, rows: Sequence[Row], y: alt.Y, scale: alt.Scale) -> list[AnyChart]:
    if all(row["formula_mb"] is None for row in rows):
        return []
    known = base.transform_filter("datum.formula_mb != null")
    return [
        known.mark_tick(color="var(--ink)", thickness=2, size=20).encode(
            x=alt.X("formula_mb:Q", scale=scale), y=y
        )
    ]


def _order(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["bar"]) for row in rows))


def _room(rows: Sequence[Row], field: str) -> float:
    """The end of the axis: the longest bar, and room for the words behind it."""
    values = [float(str(row[field])) for row in rows]
    values += [float(str(v)) for row in rows if (v := row.get("formula_mb")) is not None]
    return max(values) * 1.42 or 1.0


def _height(rows: Sequence[Row]) -> int:
    return len(_order(rows)) * BAR_PIXELS + AROUND_BARS_PIXELS
