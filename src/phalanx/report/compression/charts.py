"""Charts of bytes, time and accuracy by compressor, and of step time by bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import Figure, Row, figure, table
from phalanx.report.charts.theme import (
    faded_unless,
    highlight,
    strategy_scales,
    time_axis,
)
from phalanx.report.compression.format import bandwidth, compressor_phrase
from phalanx.report.compression.study_data import (
    MEMORY,
    NONE,
    CompressionCell,
    CompressionStudyData,
    runs_of,
)
from phalanx.report.format import amount, percent

BAR_PIXELS = 30
AROUND_BARS_PIXELS = 40
CURVE_POINTS = 60
SOURCE = "epoch events: sent_bytes; step events: all times"


def sent(data: CompressionStudyData, name: str) -> Figure | None:
    rows: list[Row] = [
        {
            "compressor": compressor_phrase(compressor),
            "sent_mb": num_bytes / 2**20,
            "words": f"{amount(num_bytes)}{_smaller(data, compressor)}",
        }
        for compressor in data.compressors
        if (num_bytes := data.sent_bytes(compressor))
    ]
    return _bars(
        rows,
        "sent_mb",
        "MB that the busiest rank sends in a step",
        name=name,
        title="Bytes of a step",
        caption="Counted as they were given to MPI; how many times fewer than without compression.",
        source="epoch events: sent_bytes",
        runs=runs_of(data.cells),
    )


def step_on(data: CompressionStudyData, place: str, name: str) -> Figure | None:
    cells = [cell for cell in data.cells if cell.place == place]
    rows: list[Row] = [
        {
            "compressor": compressor_phrase(cell.compressor),
            "step_ms": 1e3 * cell.step_s,
            "words": f"{1e3 * cell.step_s:.3g} ms{_faster(data, cell)}",
        }
        for cell in cells
    ]
    return _bars(
        rows,
        "step_ms",
        "ms of a step",
        name=name,
        title="Time of a step",
        caption="Median over the steps of the slowest rank, the first ones left out; how many "
        "times as fast as without compression.",
        source="step events: all times",
        runs=runs_of(cells),
    )


def accuracy(data: CompressionStudyData, name: str) -> Figure | None:
    rows: list[Row] = []
    for compressor in data.compressors:
        spread = data.accuracy(compressor)
        if spread:
            rows.append(
                {
                    "compressor": compressor_phrase(compressor),
                    "accuracy": spread.mean,
                    "low": spread.low,
                    "high": spread.high,
                    "seeds": spread.seeds,
                    "words": percent(spread.mean, 2),
                }
            )
    if not rows:
        return None
    y = alt.Y("compressor:N", title=None, sort=[str(row["compressor"]) for row in rows])
    x = alt.X(
        "accuracy:Q",
        title="final validation accuracy",
        scale=alt.Scale(zero=False, padding=30),
        axis=alt.Axis(format=".1%", grid=True, tickCount=4),
    )
    base = alt.Chart(table()).encode(y=y)
    tooltip = [alt.Tooltip("compressor:N"), alt.Tooltip("words:N", title="mean"), "seeds:Q"]
    layers: list[Any] = [
        base.mark_rule(strokeWidth=2, color="var(--mpi)").encode(x=alt.X("low:Q"), x2="high:Q"),
        base.mark_point(size=85, filled=True, color="var(--mpi)").encode(x=x, tooltip=tooltip),
        base.mark_text(dy=-11, fontSize=11, color="var(--ink-soft)").encode(
            x="accuracy:Q", text="words:N"
        ),
    ]
    plain = data.accuracy(NONE)
    if plain:
        line = base.transform_filter(f"datum.compressor == '{compressor_phrase(NONE)}'")
        layers.insert(0, line.mark_rule(strokeDash=[4, 3], color="var(--axis)").encode(x="low:Q"))
        layers[0] = layers[0].encode(y=alt.value(0), y2=alt.value("height"))
    return figure(
        alt.layer(*layers),
        rows,
        name=name,
        title="Accuracy after the last epoch",
        caption="Mean over seeds; the bar runs from the worst seed to the best. The dashed line is "
        "the worst seed without compression.",
        source="evaluation events: correct, samples of all ranks",
        runs=runs_of(cell for cell in data.cells if cell.place == MEMORY),
        height_pixels=AROUND_BARS_PIXELS + BAR_PIXELS * len(rows),
    )


def step_by_bandwidth(data: CompressionStudyData, name: str) -> Figure | None:
    rows = bandwidth_rows(data)
    if len({row["bits_per_s"] for row in rows if row["kind"] == "measured"}) < 2:
        return None
    picked = highlight("strategy", "strategy_picked")
    scales = strategy_scales(rows)
    base = alt.Chart(table()).encode(
        x=alt.X(
            "bits_per_s:Q",
            title="bandwidth of the link (bit/s, logarithmic)",
            scale=alt.Scale(type="log", nice=False, padding=12),
            axis=alt.Axis(format=".0s", tickCount=6),
        ),
        y=alt.Y(
            "step_ms:Q",
            title="ms of a step (logarithmic)",
            scale=alt.Scale(type="log", nice=False, padding=12),
            axis=time_axis([float(str(row["step_ms"])) for row in rows]),
        ),
        color=scales["color"],
        opacity=faded_unless(picked),
    )
    tooltip = [
        alt.Tooltip("strategy:N", title="compressor"),
        alt.Tooltip("link:N", title="bandwidth"),
        alt.Tooltip("step_ms:Q", title="step (ms)", format=",.4~g"),
        alt.Tooltip("kind:N"),
    ]
    lines = base.transform_filter("datum.kind == 'fitted'").mark_line(strokeWidth=1.8)
    marks = base.transform_filter("datum.kind == 'measured'").mark_point(size=80, filled=True)
    crossings = base.transform_filter("datum.kind == 'begins to pay'").mark_point(
        size=130, strokeWidth=1.8
    )
    return figure(
        alt.layer(
            lines,
            marks.encode(shape=scales["shape"], tooltip=tooltip),
            crossings.encode(shape=scales["shape"], tooltip=tooltip).add_params(picked),
        ),
        rows,
        name=name,
        title="Step by bandwidth",
        caption="Filled marks are measured; lines are base + slope \N{MULTIPLICATION SIGN} bytes "
        "\N{DIVISION SIGN} bandwidth, fitted to them; an open mark is where a compressor's line "
        "crosses that of float32: to the left of it compression pays.",
        source=SOURCE,
        runs=runs_of(cell for cell in data.cells if cell.place != MEMORY),
        height_pixels=340,
    )


def bandwidth_rows(data: CompressionStudyData) -> list[Row]:
    """Measured points, the fitted lines through them, and where these cross that of float32."""
    rows = []
    for cell in data.cells:
        if at := cell.bandwidth_bytes_per_s:
            rows.append(_row(cell.compressor, at, cell.step_s, "measured"))
    fit, ends = data.fit, [row["bits_per_s"] for row in rows]
    if fit is None:
        return rows
    crossings = {
        compressor: at
        for compressor in fit.bases_s
        if compressor != NONE
        and (at := data.break_even_bandwidth(compressor))
        and math.isfinite(at)
    }
    low = min(float(str(end)) for end in ends) / 8
    high = max(float(str(end)) for end in ends) / 8
    shown = {name: at for name, at in crossings.items() if low / 10 <= at <= high * 10}
    low, high = min([low, *shown.values()]), max([high, *shown.values()])
    for compressor in fit.bases_s:
        for i in range(CURVE_POINTS + 1):
            at = low * (high / low) ** (i / CURVE_POINTS)
            step_s = fit.step_s(compressor, at)
            if step_s > 0:
                rows.append(_row(compressor, at, step_s, "fitted"))
    for compressor, at in shown.items():
        rows.append(_row(compressor, at, fit.step_s(compressor, at), "begins to pay"))
    return rows


def _row(compressor: str, bytes_per_s: float, step_s: float, kind: str) -> Row:
    return {
        "strategy": compressor_phrase(compressor),
        "bits_per_s": 8 * bytes_per_s,
        "link": bandwidth(bytes_per_s),
        "step_ms": 1e3 * step_s,
        "kind": kind,
    }


def _bars(
    rows: Sequence[Row],
    field: str,
    axis: str,
    *,
    name: str,
    title: str,
    caption: str,
    source: str,
    runs: Sequence[str],
) -> Figure | None:
    if not rows:
        return None
    y = alt.Y("compressor:N", title=None, sort=[str(row["compressor"]) for row in rows])
    room = 1.5 * max(float(str(row[field])) for row in rows)
    x = alt.X(f"{field}:Q", title=axis, scale=alt.Scale(domain=[0, room], nice=False))
    base = alt.Chart(table()).encode(y=y)
    bars = base.mark_bar(cornerRadiusEnd=2, color="var(--mpi)", height={"band": 0.7}).encode(
        x=x, tooltip=[alt.Tooltip("compressor:N"), alt.Tooltip("words:N", title=axis)]
    )
    words = base.mark_text(align="left", dx=6, fontSize=11, color="var(--ink-soft)").encode(
        x=x, text="words:N"
    )
    return figure(
        alt.layer(bars, words),
        rows,
        name=name,
        title=title,
        caption=caption,
        source=source,
        runs=runs,
        height_pixels=AROUND_BARS_PIXELS + BAR_PIXELS * len(rows),
    )


def _smaller(data: CompressionStudyData, compressor: str) -> str:
    factor = data.compression_ratio(compressor)
    return f", {factor:.3g} times fewer" if factor and compressor != NONE else ""


def _faster(data: CompressionStudyData, cell: CompressionCell) -> str:
    factor = data.step_speed_up(cell.compressor, cell.place)
    return f", {factor:.2f} times" if factor and cell.compressor != NONE else ""
