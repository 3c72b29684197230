"""Measured collectives as charts: time, bandwidth, ratios, each over the size of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Figure, Row, distinct, numbers, table
from phalanx.report.charts.shapes import bars, bars_height, dashed, dashed_line, lines
from phalanx.report.charts.theme import (
    Series,
    counts_axis,
    faded_unless,
    highlight,
    known_series,
    tooltips,
)
from phalanx.report.collectives.bandwidth import bus_bandwidth
from phalanx.report.collectives.comparison import CollectiveResults, first_collective
from phalanx.report.collectives.measures import CollectivePoint
from phalanx.report.collectives.tables import GIGABYTE, in_order
from phalanx.report.comparison import TIMES
from phalanx.report.format import size

SOURCE = "calls events of all ranks: times_s, the slowest rank of each call"
FLOOR_SOURCE = f"{SOURCE}; traffic and round_trips events"
TALL_PIXELS = 330
SHAPES = {
    "window": "circle",
    "phalanx": "square",
    "torch": "diamond",
    "mpi": "triangle-up",
    "gloo": "triangle-down",
    "nccl": "cross",
    "ring": "triangle-right",
    "tree": "triangle-left",
    "halving": "stroke",
    "naive": "cross",
    "direct": "circle",
}
MEMORY_LOOKS = {"copying": ("--rank-3", "circle"), "adding": ("--rank-5", "square")}
# 4 B, 64 KB, 1 MB
SIZE_WORDS = (
    "datum.value >= 1073741824 ? datum.value / 1073741824 + ' GB' : "
    "datum.value >= 1048576 ? datum.value / 1048576 + ' MB' : "
    "datum.value >= 1024 ? datum.value / 1024 + ' KB' : datum.value + ' B'"
)
TOOLTIP = tooltips(
    *("path", "size", "count||,d", "calls||,d", "min_us|min (µs)|,.4~r"),
    *("median_us|median (µs)|,.4~r", "p99_us|p99 (µs)|,.4~r", "algbw|algbw (GB/s)|,.3~f"),
    *("busbw|busbw (GB/s)|,.3~f", f"times_floor|{TIMES} floor|,.3~r"),
    *(f"slower|{TIMES} Phalanx|,.3~r", "wrong||,d"),
)
MEDIAN = alt.Y(
    "median_us:Q",
    title="time of a call (µs, logarithmic)",
    scale=alt.Scale(type="log", padding=10),
    # Powers of ten as plain numbers, others without a word.
    axis=alt.Axis(values=[10.0**power for power in range(-1, 8)], format="~r"),
)
BUS = alt.Y("busbw:Q", title="bus bandwidth (GB/s)", scale=alt.Scale(zero=True))
OF_FLOOR = alt.Y(
    "times_floor:Q",
    title=f"{TIMES} the floor (logarithmic)",
    scale=alt.Scale(type="log", padding=10),
    axis=alt.Axis(values=[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]),
)


def call_time(results: CollectiveResults, name: str) -> Figure | None:
    return (BARRIER_TIME if results.sizes == (0,) else CALL_TIME)(results, name)


def path_series(rows: Sequence[Row], *, has_legend: bool = True) -> Series:
    looks = {
        str(row["path"]): (f"--path-{row['key']}", SHAPES.get(str(row["key"]), "circle"))
        for row in rows
    }
    # Two names fit beside each other on a phone.
    return Series(field="path", looks=looks, columns=2, has_legend=has_legend)


def rows_of(results: CollectiveResults) -> list[Row]:
    """A row for each path and size."""
    return [_row(results, point) for n in results.sizes for point in in_order(results, n)]


def _row(results: CollectiveResults, point: CollectivePoint) -> Row:
    best = next((p for p in results.at(point.num_bytes) if p.is_ours), None)
    floor_s = point.floor.seconds if point.floor else None
    floor_busbw = None
    if floor_s is not None and point.num_bytes:
        floor_busbw = bus_bandwidth(point.collective, point.ranks, point.num_bytes, floor_s)
    return {
        "path": point.label,
        "key": point.path,
        "ours": point.is_ours,
        "bytes": point.num_bytes,
        "size": size(point.num_bytes),
        "count": point.count,
        "calls": len(point.times_s),
        "min_us": point.minimum_s * 1e6,
        "median_us": point.median_s * 1e6,
        "p99_us": point.p99_s * 1e6,
        "algbw": _in_gigabytes(point.algorithm_bandwidth),
        "busbw": _in_gigabytes(point.bus_bandwidth),
        "wrong": point.wrong,
        "slower": point.median_s / best.median_s if best else None,
        "floor_us": None if floor_s is None else floor_s * 1e6,
        "floor_busbw": _in_gigabytes(floor_busbw),
        "times_floor": point.times_floor,
    }


def _in_gigabytes(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / GIGABYTE


def _rows_if_sized(results: CollectiveResults) -> list[Row]:
    return rows_of(results) if len(results.sizes) > 1 else []


def _rows_with_floor(results: CollectiveResults) -> list[Row]:
    rows = _rows_if_sized(results)
    return rows if numbers(rows, "times_floor") else []


def _rows_with_rivals(results: CollectiveResults) -> list[Row]:
    rows = rows_of(results)
    return rows if results.sizes != (0,) and _rivals(rows) else []


def _rivals(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["slower"] is not None and not row["ours"]]


def _memory_rows(results: CollectiveResults) -> list[Row]:
    """Once for each run, not for each of its collectives."""
    machine = results.measure.machine
    if len(machine.copy) < 2 or results.collective != first_collective(results.measure):
        return []
    return [
        {"pass": kernel, "bytes": working_set, "size": size(working_set), "rate": rate / GIGABYTE}
        for kernel, curve in (("copying", machine.copy), ("adding", machine.add))
        for working_set, rate in sorted(curve.items())
    ]


def _size_axis(rows: Sequence[Row], title: str = "size of a rank's buffer") -> alt.X:
    how = {"labelExpr": SIZE_WORDS, "labelOverlap": True, "grid": False}
    return counts_axis(rows, "bytes", title, **how)


def _floor(rows: Sequence[Row], field: str, y: alt.Y) -> list[AnyChart]:
    """The floor as a dashed line with its name at the end, where there is one."""
    if not numbers(rows, field):
        return []
    base = alt.Chart(table()).transform_aggregate(floor=f"min({field})", groupby=["bytes"])
    where = {"x": _size_axis(rows), "y": alt.Y("floor:Q", title=y["title"], scale=y["scale"])}
    last = f"datum.bytes == {max(int(str(r['bytes'])) for r in rows)}"
    return [dashed_line(base, "floor", last, where)]


def _over_sizes(
    rows: Sequence[Row], y: alt.Y, floor: str | None = None, spread: tuple[str, str] | None = None
) -> AnyChart:
    """A line a path over the size.

    floor: field of the floor. At small sizes its bandwidth is out of reach; the axis follows the
    paths.
    """
    drawn = lines(_size_axis(rows), y, path_series(rows), TOOLTIP, spread=spread)
    return alt.layer(*(_floor(rows, floor, y) if floor else []), drawn)


def _draw_slower(rows: Sequence[Row]) -> AnyChart:
    rivals, picked = _rivals(rows), highlight("path")
    base = alt.Chart(table()).transform_filter("!datum.ours && datum.slower != null")
    drawn = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("size:O", title="size", sort=None, axis=alt.Axis(labelAngle=-45)),
        xOffset=alt.XOffset("path:N", sort=distinct(rivals, "path")),
        y=alt.Y(
            "slower:Q",
            title=f"{TIMES} the time of the fastest of Phalanx",
            scale=alt.Scale(type="log", base=10),
            stack=None,
            axis=alt.Axis(values=[0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        ),
        y2=alt.datum(1),
        color=path_series(rivals).color,
        opacity=faded_unless(picked),
        tooltip=TOOLTIP,
    )
    one = alt.Chart(table()).mark_rule(color="var(--axis)").encode(y=alt.datum(1))
    return alt.layer(drawn.add_params(picked), one)


def _barrier_bars(rows: Sequence[Row]) -> AnyChart:
    """One bar a path, for a collective without a size."""
    colour, title = path_series(rows, has_legend=False), "time of a call (µs)"
    drawn = bars(rows, "median_us", title, by="path", tooltip=TOOLTIP, colour=colour)
    text = alt.Chart(table()).mark_text(align="left", dx=5, color="var(--ink-soft)")
    text = text.encode(
        y=alt.Y("path:N", sort=distinct(rows, "path")),
        x="median_us:Q",
        text=alt.Text("median_us:Q", format=",.3~r"),
    )
    return alt.layer(drawn, text)


_chart = partial(Chart, runs=lambda results: [results.measure.name], height=TALL_PIXELS)
BARRIER_TIME = _chart(
    title="Time of a call",
    caption="Median over calls, each as long as its slowest rank.",
    source=SOURCE,
    rows=rows_of,
    draw=_barrier_bars,
    height=lambda rows: bars_height(rows, "path"),
)
CALL_TIME = _chart(
    title="Time of a call",
    caption="Median over calls, each as long as its slowest rank; the bar runs from the "
    "shortest to the 99th percentile, the dashed line is the floor of this machine.",
    source=FLOOR_SOURCE,
    rows=rows_of,
    draw=lambda rows: _over_sizes(rows, MEDIAN, "floor_us", ("min_us", "p99_us")),
)
BANDWIDTH = _chart(
    title="Bus bandwidth",
    caption="As nccl-tests defines it, from the median; the dashed line is the floor of this "
    "machine turned into a bandwidth.",
    source=FLOOR_SOURCE,
    rows=_rows_if_sized,
    draw=lambda rows: _over_sizes(rows, BUS, "floor_busbw"),
)
TIMES_SLOWER = _chart(
    title="Against Phalanx",
    caption="Median of each rival ÷ median of Phalanx' fastest path at the same size in the "
    "same run, logarithmic; above the line Phalanx is faster.",
    source=SOURCE,
    rows=_rows_with_rivals,
    draw=_draw_slower,
)
TIMES_FLOOR = _chart(
    title="Distance from the floor",
    caption="Median ÷ the time in which this machine's memory could move the bytes that must "
    "move and its flags go there and back.",
    source=FLOOR_SOURCE,
    rows=_rows_with_floor,
    draw=lambda rows: alt.layer(
        dashed().encode(y=alt.datum(1)),
        _over_sizes([row for row in rows if row["times_floor"] is not None], OF_FLOOR),
    ),
)
MEMORY = _chart(
    title="This machine's memory",
    caption="Bytes read and written, every rank on memory of its own, all at once; the floor "
    "is computed from copying.",
    source="traffic events of all ranks: traffic_bytes, times_s",
    rows=_memory_rows,
    draw=lambda rows: lines(
        _size_axis(rows, "memory that a rank touches"),
        alt.Y("rate:Q", title="all ranks together (GB/s)", scale=alt.Scale(zero=True)),
        known_series("pass", rows, MEMORY_LOOKS),
        tooltips("pass", "size", "rate|GB/s|,.1f"),
    ),
)
