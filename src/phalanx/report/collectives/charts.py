"""Measured collectives as charts: time, bandwidth, ratios, each over the size of the buffer."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.look import faded_unless, highlight
from phalanx.report.collectives.bandwidth import bus_bandwidth
from phalanx.report.collectives.comparison import Subject
from phalanx.report.collectives.measures import Point
from phalanx.report.collectives.tables import GIGABYTE, in_order
from phalanx.report.comparison import TIMES
from phalanx.report.wording import size

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
}
SOURCE = "calls events of all ranks: times_s, the slowest rank of each call"
FLOOR_SOURCE = f"{SOURCE}; traffic and round_trips events"
# 4 B, 64 KB, 1 MB
SIZE_WORDS = (
    "datum.value >= 1073741824 ? datum.value / 1073741824 + ' GB' : "
    "datum.value >= 1048576 ? datum.value / 1048576 + ' MB' : "
    "datum.value >= 1024 ? datum.value / 1024 + ' KB' : datum.value + ' B'"
)


def call_time(subject: Subject, name: str) -> Figure | None:
    rows = rows_of(subject)
    if subject.sizes == (0,):
        return figure(
            _bars(rows),
            rows,
            name=name,
            title="Time of a call",
            caption="Median over calls, each as long as its slowest rank.",
            source=SOURCE,
            runs=[subject.measure.name],
        )
    y = alt.Y("median_us:Q", title="time of a call (µs, logarithmic)", scale=_log(), axis=_tens())
    return figure(
        alt.layer(*_floor(rows, "floor_us", y), *_spread(rows), _lines(rows, y)),
        rows,
        name=name,
        title="Time of a call",
        caption="Median over calls, each as long as its slowest rank; the bar runs from the "
        "shortest to the 99th percentile, the dashed line is the floor of this machine.",
        source=FLOOR_SOURCE,
        runs=[subject.measure.name],
        height_pixels=330,
    )


def bandwidth(subject: Subject, name: str) -> Figure | None:
    rows = rows_of(subject)
    if len(subject.sizes) < 2:
        return None
    y = alt.Y("busbw:Q", title="bus bandwidth (GB/s)", scale=alt.Scale(zero=True))
    return figure(
        # The floor of small sizes is far above what anything reaches; the axis follows the paths.
        alt.layer(*_floor(rows, "floor_busbw", y), _lines(rows, y)),
        rows,
        name=name,
        title="Bus bandwidth",
        caption="As nccl-tests defines it, from the median; the dashed line is the floor of this "
        "machine turned into a bandwidth.",
        source=FLOOR_SOURCE,
        runs=[subject.measure.name],
        height_pixels=330,
    )


def times_slower(subject: Subject, name: str) -> Figure | None:
    rows = [row for row in rows_of(subject) if row["slower"] is not None and not row["ours"]]
    if not rows or subject.sizes == (0,):
        return None
    picked = highlight("path", "path_picked")
    x = alt.X("size:O", title="size", sort=None, axis=alt.Axis(labelAngle=-45))
    base = alt.Chart(table()).transform_filter("!datum.ours && datum.slower != null")
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=x,
        xOffset=alt.XOffset("path:N", sort=_order(rows)),
        y=alt.Y(
            "slower:Q",
            title=f"{TIMES} the time of the fastest of Phalanx",
            scale=alt.Scale(type="log", base=10),
            stack=None,
            axis=alt.Axis(values=[0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        ),
        y2=alt.datum(1),
        color=_colour(rows),
        opacity=faded_unless(picked),
        tooltip=_tooltip(),
    )
    one = alt.Chart(table()).mark_rule(color="var(--axis)").encode(y=alt.datum(1))
    return figure(
        alt.layer(bars.add_params(picked), one),
        rows_of(subject),
        name=name,
        title="Against Phalanx",
        caption="Median of each rival ÷ median of Phalanx' fastest path at the same size in the "
        "same run, logarithmic; above the line Phalanx is faster.",
        source=SOURCE,
        runs=[subject.measure.name],
        height_pixels=330,
    )


def times_floor(subject: Subject, name: str) -> Figure | None:
    rows = [row for row in rows_of(subject) if row["times_floor"] is not None]
    if len(subject.sizes) < 2 or not rows:
        return None
    y = alt.Y(
        "times_floor:Q",
        title=f"{TIMES} the floor (logarithmic)",
        scale=_log(),
        axis=alt.Axis(values=[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]),
    )
    one = alt.Chart(table()).mark_rule(color="var(--ideal)", strokeDash=[4, 4])
    return figure(
        alt.layer(one.encode(y=alt.datum(1)), _lines(rows, y)),
        rows_of(subject),
        name=name,
        title="Distance from the floor",
        caption="Median ÷ the time in which this machine's memory could move the bytes that must "
        "move and its flags go there and back.",
        source=FLOOR_SOURCE,
        runs=[subject.measure.name],
        height_pixels=330,
    )


def rows_of(subject: Subject) -> list[Row]:
    """A row for each path and size."""
    return [_row(subject, point) for n in subject.sizes for point in in_order(subject, n)]


def _row(subject: Subject, point: Point) -> Row:
    best = next((p for p in subject.at(point.num_bytes) if p.is_ours), None)
    floor_s = point.floor.seconds if point.floor else None
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
        "floor_busbw": _floor_bandwidth(point, floor_s),
        "times_floor": point.times_floor,
    }


def _floor_bandwidth(point: Point, floor_s: float | None) -> float | None:
    if floor_s is None or not point.num_bytes:
        return None
    return bus_bandwidth(point.collective, point.ranks, point.num_bytes, floor_s) / GIGABYTE


def _in_gigabytes(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / GIGABYTE


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    """A line a path, with a mark at every size."""
    picked = highlight("path", "path_picked")
    base = alt.Chart(table()).encode(
        x=_size_axis(rows), y=y, color=_colour(rows), opacity=faded_unless(picked)
    )
    marks = base.mark_point(size=60, filled=True, stroke="var(--surface)", strokeWidth=1)
    marks = marks.encode(shape=_shape(rows), tooltip=_tooltip())
    return alt.layer(base.mark_line(strokeWidth=2), marks.add_params(picked))


def _spread(rows: Sequence[Row]) -> list[AnyChart]:
    bars = alt.Chart(table()).mark_rule(strokeWidth=1.2, opacity=0.45)
    return [
        bars.encode(
            x=_size_axis(rows),
            y=alt.Y("min_us:Q", scale=_log()),
            y2="p99_us:Q",
            color=_colour(rows),
        )
    ]


def _floor(rows: Sequence[Row], field: str, y: alt.Y) -> list[AnyChart]:
    """The floor as a dashed line with its name at the end, where there is one."""
    if all(row[field] is None for row in rows):
        return []
    base = alt.Chart(table()).transform_aggregate(floor=f"min({field})", groupby=["bytes"])
    where = {"x": _size_axis(rows), "y": alt.Y("floor:Q", title=y["title"], scale=y["scale"])}
    line = base.mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5, clip=True)
    last = base.transform_filter(f"datum.bytes == {max(int(str(r['bytes'])) for r in rows)}")
    text = last.mark_text(align="right", dx=-6, dy=12, color="var(--ink-soft)", fontSize=12)
    return [alt.layer(line.encode(**where), text.encode(**where, text=alt.value("floor")))]


def _bars(rows: Sequence[Row]) -> AnyChart:
    """One bar a path, for a collective without a size."""
    base = alt.Chart(table()).encode(
        y=alt.Y("path:N", sort=_order(rows), title=None),
        x=alt.X("median_us:Q", title="time of a call (µs)"),
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        color=_colour(rows, legend=False), tooltip=_tooltip()
    )
    text = base.mark_text(align="left", dx=5, color="var(--ink-soft)")
    return alt.layer(bars, text.encode(text=alt.Text("median_us:Q", format=",.3~r")))


def _size_axis(rows: Sequence[Row]) -> alt.X:
    sizes = sorted({int(str(row["bytes"])) for row in rows})
    return alt.X(
        "bytes:Q",
        title="size of a rank's buffer (logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=12, nice=False),
        axis=alt.Axis(values=sizes, labelExpr=SIZE_WORDS, labelOverlap=True, grid=False),
    )


def _log() -> alt.Scale:
    return alt.Scale(type="log", padding=10)


def _tens() -> alt.Axis:
    """Powers of ten as plain numbers, others without a word."""
    return alt.Axis(values=[10.0**power for power in range(-1, 8)], format="~r")


def _order(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["path"]) for row in rows))


def _keys(rows: Sequence[Row]) -> dict[str, str]:
    return {str(row["path"]): str(row["key"]) for row in rows}


def _colour(rows: Sequence[Row], *, legend: bool = True) -> alt.Color:
    keys = _keys(rows)
    scale = alt.Scale(domain=list(keys), range=[f"var(--path-{key})" for key in keys.values()])
    if not legend:
        return alt.Color("path:N", scale=scale, legend=None)
    return alt.Color("path:N", title=None, scale=scale, legend=alt.Legend(columns=4))


def _shape(rows: Sequence[Row]) -> alt.Shape:
    keys = _keys(rows)
    shapes = [SHAPES.get(key, "circle") for key in keys.values()]
    scale = alt.Scale(domain=list(keys), range=shapes)
    return alt.Shape("path:N", title=None, scale=scale, legend=alt.Legend(columns=4))


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("path:N"),
        alt.Tooltip("size:N"),
        alt.Tooltip("count:Q", format=",d"),
        alt.Tooltip("calls:Q", format=",d"),
        alt.Tooltip("min_us:Q", title="min (µs)", format=",.4~r"),
        alt.Tooltip("median_us:Q", title="median (µs)", format=",.4~r"),
        alt.Tooltip("p99_us:Q", title="p99 (µs)", format=",.4~r"),
        alt.Tooltip("algbw:Q", title="algbw (GB/s)", format=",.3~f"),
        alt.Tooltip("busbw:Q", title="busbw (GB/s)", format=",.3~f"),
        alt.Tooltip("times_floor:Q", title=f"{TIMES} floor", format=",.3~r"),
        alt.Tooltip("slower:Q", title=f"{TIMES} Phalanx", format=",.3~r"),
        alt.Tooltip("wrong:Q", format=",d"),
    ]
