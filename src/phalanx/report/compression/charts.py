"""Charts of bytes, time and accuracy by compressor, and of step time by bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Figure, Row, numbers, table
from phalanx.report.charts.shapes import bars_height, bars_with_words, names_axis
from phalanx.report.charts.theme import (
    faded_unless,
    highlight,
    log_ticks,
    strategy_series,
    tooltips,
)
from phalanx.report.comparison import runs_of
from phalanx.report.compression.study_data import (
    MEMORY,
    NONE,
    CompressionCell,
    CompressionStudyData,
    bandwidth_text,
    compressor_phrase,
)
from phalanx.report.format import amount, percent

CURVE_POINTS = 60


def bandwidth_rows(data: CompressionStudyData) -> list[Row]:
    """Measured points, the fitted lines through them, and where these cross that of float32."""
    fit = data.fit
    points = [(c.compressor, at, c.step_s) for c in data.cells if (at := c.bandwidth_bytes_per_s)]
    rows = [_row(compressor, at, step_s, "measured") for compressor, at, step_s in points]
    if fit is None:
        return rows
    low, high = (end(at for _, at, _ in points) for end in (min, max))
    crossings = {
        compressor: at
        for compressor in fit.bases_s
        if compressor != NONE
        and (at := data.break_even_bandwidth(compressor))
        and math.isfinite(at)
        and low / 10 <= at <= high * 10
    }
    low, high = min([low, *crossings.values()]), max([high, *crossings.values()])
    for compressor in fit.bases_s:
        for i in range(CURVE_POINTS + 1):
            at = low * (high / low) ** (i / CURVE_POINTS)
            step_s = fit.step_s(compressor, at)
            if step_s > 0:
                rows.append(_row(compressor, at, step_s, "fitted"))
    return rows + [
        _row(compressor, at, fit.step_s(compressor, at), "begins to pay")
        for compressor, at in crossings.items()
    ]


def _row(compressor: str, bytes_per_s: float, step_s: float, kind: str) -> Row:
    return {
        "strategy": compressor_phrase(compressor),
        "bits_per_s": 8 * bytes_per_s,
        "link": bandwidth_text(bytes_per_s),
        "step_ms": 1e3 * step_s,
        "kind": kind,
    }


def _sent_rows(data: CompressionStudyData) -> list[Row]:
    rows: list[Row] = []
    for compressor in data.compressors:
        if num_bytes := data.sent_bytes(compressor):
            factor = data.compression_ratio(compressor) if compressor != NONE else None
            fewer = f", {factor:.3g} times fewer" if factor else ""
            rows.append(
                {
                    "compressor": compressor_phrase(compressor),
                    "sent_mb": num_bytes / 2**20,
                    "words": f"{amount(num_bytes)}{fewer}",
                }
            )
    return rows


def _step_rows(cells: Sequence[CompressionCell], data: CompressionStudyData) -> list[Row]:
    rows: list[Row] = []
    for cell in cells:
        gain = data.step_speed_up(cell.compressor, cell.place) if cell.compressor != NONE else None
        faster = f", {gain:.2f} times" if gain else ""
        rows.append(
            {
                "compressor": compressor_phrase(cell.compressor),
                "step_ms": 1e3 * cell.step_s,
                "words": f"{1e3 * cell.step_s:.3g} ms{faster}",
            }
        )
    return rows


def _accuracy_rows(data: CompressionStudyData) -> list[Row]:
    return [
        {
            "compressor": compressor_phrase(compressor),
            "accuracy": spread.mean,
            "low": spread.low,
            "high": spread.high,
            "seeds": spread.seeds,
            "words": percent(spread.mean, 2),
        }
        for compressor in data.compressors
        if (spread := data.accuracy(compressor))
    ]


def _bars(rows: Sequence[Row], field: str, axis: str) -> AnyChart:
    tooltip = tooltips("compressor", f"words|{axis}")
    return bars_with_words(rows, field, axis, by="compressor", tooltip=tooltip, colour="--mpi")


def _draw_accuracy(rows: Sequence[Row]) -> AnyChart:
    """A mark a compressor, from its worst seed to its best."""
    base = alt.Chart(table()).encode(y=names_axis(rows, "compressor"))
    x = alt.X(
        "accuracy:Q",
        title="final validation accuracy",
        scale=alt.Scale(zero=False, padding=30),
        axis=alt.Axis(format=".1%", grid=True, tickCount=4),
    )
    marks = base.mark_point(size=85, filled=True, color="var(--mpi)")
    words = base.mark_text(dy=-11, fontSize=11, color="var(--ink-soft)")
    layers: list[Any] = [
        base.mark_rule(strokeWidth=2, color="var(--mpi)").encode(x="low:Q", x2="high:Q"),
        marks.encode(x=x, tooltip=tooltips("compressor", "words|mean", "seeds:Q")),
        words.encode(x="accuracy:Q", text="words:N"),
    ]
    none = compressor_phrase(NONE)
    if any(row["compressor"] == none for row in rows):
        plain = alt.Chart(table()).transform_filter(f"datum.compressor == '{none}'")
        rule = plain.mark_rule(strokeDash=[4, 3], color="var(--axis)")
        layers.insert(0, rule.encode(x="low:Q", y=alt.value(0), y2=alt.value("height")))
    return alt.layer(*layers)


def _draw_bandwidths(rows: Sequence[Row]) -> AnyChart:
    picked, series = highlight("strategy"), strategy_series(rows)
    scale = alt.Scale(type="log", nice=False, padding=12)
    base = alt.Chart(table()).encode(
        x=alt.X(
            "bits_per_s:Q",
            title="bandwidth of the link (bit/s, logarithmic)",
            scale=scale,
            axis=alt.Axis(format=".0s", tickCount=6),
        ),
        y=alt.Y(
            "step_ms:Q",
            title="ms of a step (logarithmic)",
            scale=scale,
            axis=log_ticks(numbers(rows, "step_ms")),
        ),
        color=series.color,
        opacity=faded_unless(picked),
    )
    lines, measured, crossings = (
        base.transform_filter(f"datum.kind == '{kind}'")
        for kind in ("fitted", "measured", "begins to pay")
    )
    marks: dict[str, Any] = {
        "shape": series.shape,
        "tooltip": tooltips(
            *("strategy|compressor", "link|bandwidth", "step_ms|step (ms)|,.4~g", "kind")
        ),
    }
    return alt.layer(
        lines.mark_line(strokeWidth=1.8),
        measured.mark_point(size=80, filled=True).encode(**marks),
        crossings.mark_point(size=130, strokeWidth=1.8).encode(**marks).add_params(picked),
    )


def _rows_on_links(data: CompressionStudyData) -> list[Row]:
    """None where fewer than two bandwidths were measured."""
    rows = bandwidth_rows(data)
    measured = {row["bits_per_s"] for row in rows if row["kind"] == "measured"}
    return rows if len(measured) > 1 else []


_chart = partial(
    Chart[CompressionStudyData],
    runs=lambda data: runs_of(data.cells),
    height=lambda rows: bars_height(rows, "compressor"),
)
SENT = _chart(
    title="Bytes of a step",
    caption="Counted as they were given to MPI; how many times fewer than without compression.",
    source="epoch events: sent_bytes",
    rows=_sent_rows,
    draw=lambda rows: _bars(rows, "sent_mb", "MB that the busiest rank sends in a step"),
)
ACCURACY = _chart(
    title="Accuracy after the last epoch",
    caption="Mean over seeds; the bar runs from the worst seed to the best. The dashed line is "
    "the worst seed without compression.",
    source="evaluation events: correct, samples of all ranks",
    rows=_accuracy_rows,
    runs=lambda data: runs_of([cell for cell in data.cells if cell.place == MEMORY]),
    draw=_draw_accuracy,
)
STEP_BY_BANDWIDTH = _chart(
    title="Step by bandwidth",
    caption="Filled marks are measured; lines are base + slope \N{MULTIPLICATION SIGN} bytes "
    "\N{DIVISION SIGN} bandwidth, fitted to them; an open mark is where a compressor's line "
    "crosses that of float32: to the left of it compression pays.",
    source="epoch events: sent_bytes; step events: all times",
    rows=_rows_on_links,
    runs=lambda data: runs_of([cell for cell in data.cells if cell.place != MEMORY]),
    draw=_draw_bandwidths,
    height=340,
)


def step_on(data: CompressionStudyData, place: str, name: str) -> Figure | None:
    cells = [cell for cell in data.cells if cell.place == place]
    chart = _chart(
        title="Time of a step",
        caption="Median over the steps of the slowest rank, the first ones left out; how many "
        "times as fast as without compression.",
        source="step events: all times",
        rows=lambda data: _step_rows(cells, data),
        runs=lambda _: runs_of(cells),
        draw=lambda rows: _bars(rows, "step_ms", "ms of a step"),
    )
    return chart(data, name)
