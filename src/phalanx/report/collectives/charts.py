"""Measured collectives as charts: time, bandwidth, ratios, each over the size of the buffer."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.theme import faded_unless, highlight
from phalanx.report.collectives.chart_rows import rows_of
from phalanx.report.collectives.comparison import CollectiveResults, first_collective
from phalanx.report.collectives.tables import GIGABYTE
from phalanx.report.collectives.theme import (
    log_scale,
    path_colour,
    path_shape,
    paths_in_order,
    powers_of_ten,
    size_axis,
    tooltip,
)
from phalanx.report.comparison import TIMES
from phalanx.report.format import size

SOURCE = "calls events of all ranks: times_s, the slowest rank of each call"
FLOOR_SOURCE = f"{SOURCE}; traffic and round_trips events"


def call_time(results: CollectiveResults, name: str) -> Figure | None:
    rows = rows_of(results)
    if results.sizes == (0,):
        return figure(
            _bars(rows),
            rows,
            name=name,
            title="Time of a call",
            caption="Median over calls, each as long as its slowest rank.",
            source=SOURCE,
            runs=[results.measure.name],
        )
    y = alt.Y(
        "median_us:Q",
        title="time of a call (µs, logarithmic)",
        scale=log_scale(),
        axis=powers_of_ten(),
    )
    return figure(
        alt.layer(*_floor(rows, "floor_us", y), *_spread(rows), _lines(rows, y)),
        rows,
        name=name,
        title="Time of a call",
        caption="Median over calls, each as long as its slowest rank; the bar runs from the "
        "shortest to the 99th percentile, the dashed line is the floor of this machine.",
        source=FLOOR_SOURCE,
        runs=[results.measure.name],
        height_pixels=330,
    )


def bandwidth(results: CollectiveResults, name: str) -> Figure | None:
    rows = rows_of(results)
    if len(results.sizes) < 2:
        return None
    y = alt.Y("busbw:Q", title="bus bandwidth (GB/s)", scale=alt.Scale(zero=True))
    return figure(
        # At small sizes the floor's bandwidth is out of reach; the axis follows the paths.
        alt.layer(*_floor(rows, "floor_busbw", y), _lines(rows, y)),
        rows,
        name=name,
        title="Bus bandwidth",
        caption="As nccl-tests defines it, from the median; the dashed line is the floor of this "
        "machine turned into a bandwidth.",
        source=FLOOR_SOURCE,
        runs=[results.measure.name],
        height_pixels=330,
    )


def times_slower(results: CollectiveResults, name: str) -> Figure | None:
    rows = [row for row in rows_of(results) if row["slower"] is not None and not row["ours"]]
    if not rows or results.sizes == (0,):
        return None
    picked = highlight("path", "path_picked")
    x = alt.X("size:O", title="size", sort=None, axis=alt.Axis(labelAngle=-45))
    base = alt.Chart(table()).transform_filter("!datum.ours && datum.slower != null")
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=x,
        xOffset=alt.XOffset("path:N", sort=paths_in_order(rows)),
        y=alt.Y(
            "slower:Q",
            title=f"{TIMES} the time of the fastest of Phalanx",
            scale=alt.Scale(type="log", base=10),
            stack=None,
            axis=alt.Axis(values=[0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        ),
        y2=alt.datum(1),
        color=path_colour(rows),
        opacity=faded_unless(picked),
        tooltip=tooltip(),
    )
    one = alt.Chart(table()).mark_rule(color="var(--axis)").encode(y=alt.datum(1))
    return figure(
        alt.layer(bars.add_params(picked), one),
        rows_of(results),
        name=name,
        title="Against Phalanx",
        caption="Median of each rival ÷ median of Phalanx' fastest path at the same size in the "
        "same run, logarithmic; above the line Phalanx is faster.",
        source=SOURCE,
        runs=[results.measure.name],
        height_pixels=330,
    )


def times_floor(results: CollectiveResults, name: str) -> Figure | None:
    rows = [row for row in rows_of(results) if row["times_floor"] is not None]
    if len(results.sizes) < 2 or not rows:
        return None
    y = alt.Y(
        "times_floor:Q",
        title=f"{TIMES} the floor (logarithmic)",
        scale=log_scale(),
        axis=alt.Axis(values=[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]),
    )
    one = alt.Chart(table()).mark_rule(color="var(--ideal)", strokeDash=[4, 4])
    return figure(
        alt.layer(one.encode(y=alt.datum(1)), _lines(rows, y)),
        rows_of(results),
        name=name,
        title="Distance from the floor",
        caption="Median ÷ the time in which this machine's memory could move the bytes that must "
        "move and its flags go there and back.",
        source=FLOOR_SOURCE,
        runs=[results.measure.name],
        height_pixels=330,
    )


def memory(results: CollectiveResults, name: str) -> Figure | None:
    """Draw the machine's own bandwidth, which paths are compared with; once for each run."""
    machine = results.measure.machine
    if len(machine.copy) < 2 or results.collective != first_collective(results.measure):
        return None
    rows: list[Row] = [
        {"pass": kernel, "bytes": working_set, "size": size(working_set), "rate": rate / GIGABYTE}
        for kernel, curve in (("copying", machine.copy), ("adding", machine.add))
        for working_set, rate in sorted(curve.items())
    ]
    colours = alt.Scale(domain=["copying", "adding"], range=["var(--rank-3)", "var(--rank-5)"])
    shapes = alt.Scale(domain=["copying", "adding"], range=["circle", "square"])
    base = alt.Chart(table()).encode(
        x=size_axis(rows, "memory that a rank touches (logarithmic)"),
        y=alt.Y("rate:Q", title="all ranks together (GB/s)", scale=alt.Scale(zero=True)),
        color=alt.Color("pass:N", title=None, scale=colours),
    )
    exact = [
        alt.Tooltip("pass:N"),
        alt.Tooltip("size:N"),
        alt.Tooltip("rate:Q", title="GB/s", format=",.1f"),
    ]
    marks = base.mark_point(size=60, filled=True).encode(
        shape=alt.Shape("pass:N", title=None, scale=shapes), tooltip=exact
    )
    return figure(
        alt.layer(base.mark_line(strokeWidth=2), marks),
        rows,
        name=name,
        title="This machine's memory",
        caption="Bytes read and written, every rank on memory of its own, all at once; the floor "
        "is computed from copying.",
        source="traffic events of all ranks: traffic_bytes, times_s",
        runs=[results.measure.name],
        height_pixels=330,
    )


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    """A line a path, with a mark at every size."""
    picked = highlight("path", "path_picked")
    base = alt.Chart(table()).encode(
        x=size_axis(rows), y=y, color=path_colour(rows), opacity=faded_unless(picked)
    )
    marks = base.mark_point(size=60, filled=True, stroke="var(--surface)", strokeWidth=1)
    marks = marks.encode(shape=path_shape(rows), tooltip=tooltip())
    return alt.layer(base.mark_line(strokeWidth=2), marks.add_params(picked))


def _spread(rows: Sequence[Row]) -> list[AnyChart]:
    bars = alt.Chart(table()).mark_rule(strokeWidth=1.2, opacity=0.45)
    return [
        bars.encode(
            x=size_axis(rows),
            y=alt.Y("min_us:Q", scale=log_scale()),
            y2="p99_us:Q",
            color=path_colour(rows),
        )
    ]


def _floor(rows: Sequence[Row], field: str, y: alt.Y) -> list[AnyChart]:
    """The floor as a dashed line with its name at the end, where there is one."""
    if all(row[field] is None for row in rows):
        return []
    base = alt.Chart(table()).transform_aggregate(floor=f"min({field})", groupby=["bytes"])
    where = {"x": size_axis(rows), "y": alt.Y("floor:Q", title=y["title"], scale=y["scale"])}
    line = base.mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5, clip=True)
    last = base.transform_filter(f"datum.bytes == {max(int(str(r['bytes'])) for r in rows)}")
    text = last.mark_text(align="right", dx=-6, dy=12, color="var(--ink-soft)", fontSize=12)
    return [alt.layer(line.encode(**where), text.encode(**where, text=alt.value("floor")))]


def _bars(rows: Sequence[Row]) -> AnyChart:
    """One bar a path, for a collective without a size."""
    base = alt.Chart(table()).encode(
        y=alt.Y("path:N", sort=paths_in_order(rows), title=None),
        x=alt.X("median_us:Q", title="time of a call (µs)"),
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        color=path_colour(rows, legend=False), tooltip=tooltip()
    )
    text = base.mark_text(align="left", dx=5, color="var(--ink-soft)")
    return alt.layer(bars, text.encode(text=alt.Text("median_us:Q", format=",.3~r")))
