"""Loading as charts: rates, utilisation, waits."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.records.io import Cache
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.look import faded_unless, highlight
from phalanx.report.io.comparison import LOADERS, SPOKEN, floor_of, in_cache, own
from phalanx.report.io.measures import IoMeasure, Point

SOURCE = "io_epoch events of all ranks: samples, bytes, total_s, waits_s"
MEGABYTE = 1e6
LOADER_COLOURS = {
    "phalanx": "var(--mpi)",
    "torch": "var(--gloo)",
    "torch-batched": "var(--rank-3)",
    "read": "var(--sequential)",
}
FORMAT_COLOURS = {
    "files": "var(--rank-1)",
    "tar": "var(--rank-0)",
    "npy": "var(--rank-2)",
    "hdf5": "var(--rank-3)",
    "parquet": "var(--rank-4)",
}
FORMAT_SHAPES = {
    "files": "triangle-up",
    "tar": "circle",
    "npy": "square",
    "hdf5": "diamond",
    "parquet": "cross",
}


def rows_of(points: Sequence[Point]) -> list[Row]:
    """A row a way and pace."""
    return [_row(point) for point in points]


def _row(point: Point) -> Row:
    cell = point.cell
    low, high = point.range_bytes_per_s
    shares = point.range_utilisation or (None, None)
    readers = f"{cell.readers} {cell.kind}" if cell.readers else "no readers"
    return {
        "format": SPOKEN[cell.format],
        "loader": LOADERS[cell.loader],
        "kind": cell.kind,
        "cache": cell.cache,
        "readers": cell.readers,
        "depth": cell.depth,
        "ranks": cell.ranks,
        "way": readers if cell.loader != "read" else "one process",
        "compute_ms": point.compute_s * 1e3,
        "samples_per_s": point.samples_per_s,
        "mb_per_s": point.bytes_per_s / MEGABYTE,
        "mb_low": low / MEGABYTE,
        "mb_high": high / MEGABYTE,
        "first_ms": point.first_s * 1e3,
        "stalls": point.stalls,
        "utilisation": point.utilisation,
        "utilisation_low": shares[0],
        "utilisation_high": shares[1],
    }


def throughput(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """Flat out, a bar a loader in every format: its fastest way."""
    best: dict[tuple[str, str], Point] = {}
    for point in in_cache(measure.flat, cache):
        key = (point.cell.format, point.cell.loader)
        if key not in best or point.bytes_per_s > best[key].bytes_per_s:
            best[key] = point
    if not best:
        return None
    rows = rows_of(list(best.values()))
    base = alt.Chart(table()).encode(
        y=alt.Y("format:N", title=None, sort=_formats(rows)),
        yOffset=alt.YOffset("loader:N", sort=list(LOADERS.values())),
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("mb_per_s:Q", title="MB/s flat out"), color=loader_colour(rows), tooltip=tooltip()
    )
    spread = base.mark_rule(color="var(--ink-soft)").encode(x="mb_low:Q", x2="mb_high:Q")
    return figure(
        alt.layer(bars, spread),
        rows,
        name=name,
        title="What comes through",
        caption="Bytes of samples a second when nothing is computed; of each loader its fastest "
        "way, median over epochs. The line runs from the slowest epoch to the fastest.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=60 + 26 * len(rows),
    )


def utilisation(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """With compute, a bar a format and number of readers, against the floor."""
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    if not points:
        return None
    rows = rows_of(points)
    base = alt.Chart(table()).encode(
        y=alt.Y("format:N", title=None, sort=_formats(rows)),
        yOffset=alt.YOffset("row:N"),
    )
    base = base.transform_calculate(row="datum.way + ' ' + datum.depth + ' ' + datum.ranks")
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X(
            "utilisation:Q",
            title="busy: compute ÷ total time",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format="%"),
        ),
        color=format_colour(rows, legend=False),
        tooltip=tooltip(),
    )
    line = alt.Chart(table()).mark_rule(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    return figure(
        alt.layer(bars, line.encode(x=alt.datum(floor_of(measure)))),
        rows,
        name=name,
        title="How busy the accelerator is",
        caption="Median over epochs; the dashed line is the floor that the profile sets.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=60 + 24 * len(rows),
    )


def first_batch(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    points = own(in_cache(measure.paced, cache))
    if not points:
        return None
    rows = rows_of(points)
    base = alt.Chart(table()).transform_calculate(
        row="datum.way + ' ' + datum.depth + ' ' + datum.ranks"
    )
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=alt.Y("format:N", title=None, sort=_formats(rows)),
        yOffset=alt.YOffset("row:N"),
        x=alt.X("first_ms:Q", title="until the first batch is there (ms)"),
        color=format_colour(rows, legend=False),
        tooltip=tooltip(),
    )
    return figure(
        bars,
        rows,
        name=name,
        title="Time to the first batch",
        caption="From the start of the epoch; later ones are loaded while it computes.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=60 + 24 * len(rows),
    )


def by_readers(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """Lines over the number of readers, where several were measured."""
    points = own(in_cache(measure.flat, cache))
    return over(
        measure,
        points,
        "readers",
        "readers",
        name=name,
        title="More readers",
        caption="Bytes a second flat out by the number of readers; a line a format, its fastest "
        "depth.",
    )


def by_depth(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    points = [p for p in own(in_cache(measure.flat, cache)) if p.cell.readers]
    return over(
        measure,
        points,
        "depth",
        "batches ahead",
        name=name,
        title="More batches ahead",
        caption="Bytes a second flat out by the number of batches that may wait; a line a format, "
        "its fastest number of readers.",
    )


def by_ranks(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    return over(
        measure,
        own(in_cache(measure.flat, cache)),
        "ranks",
        "ranks",
        name=name,
        title="More ranks",
        caption="Bytes a second of all ranks together, each on data of its own; a line a format, "
        "its fastest way.",
    )


def over(
    measure: IoMeasure,
    points: Sequence[Point],
    field: str,
    axis: str,
    *,
    name: str,
    title: str,
    caption: str,
) -> Figure | None:
    """The fastest of each format at each value of a field; None where it has one value."""
    best: dict[tuple[str, int], Point] = {}
    for point in points:
        key = (point.cell.format, int(getattr(point.cell, field)))
        if key not in best or point.bytes_per_s > best[key].bytes_per_s:
            best[key] = point
    values = sorted({value for _, value in best})
    if len(values) < 2:
        return None
    rows = rows_of([best[key] for key in sorted(best)])
    y = alt.Y("mb_per_s:Q", title="MB/s flat out", scale=alt.Scale(zero=True))
    x = alt.X(f"{field}:O", title=axis, axis=alt.Axis(labelAngle=0))
    return figure(
        lines(rows, x, y),
        rows,
        name=name,
        title=title,
        caption=caption,
        source=SOURCE,
        runs=[measure.name],
        height_pixels=300,
    )


def lines(rows: Sequence[Row], x: alt.X, y: alt.Y) -> AnyChart:
    """A line a format, with a mark at every value."""
    picked = highlight("format", "format_picked")
    base = alt.Chart(table()).encode(
        x=x, y=y, color=format_colour(rows), opacity=faded_unless(picked)
    )
    marks = base.mark_point(size=60, filled=True, stroke="var(--surface)", strokeWidth=1)
    marks = marks.encode(shape=format_shape(rows), tooltip=tooltip())
    return alt.layer(base.mark_line(strokeWidth=2), marks.add_params(picked))


def loader_colour(rows: Sequence[Row]) -> alt.Color:
    present = {str(row["loader"]) for row in rows}
    keys = [key for key, label in LOADERS.items() if label in present]
    scale = alt.Scale(
        domain=[LOADERS[key] for key in keys], range=[LOADER_COLOURS[key] for key in keys]
    )
    return alt.Color("loader:N", title=None, scale=scale, legend=alt.Legend(columns=2))


def format_colour(rows: Sequence[Row], *, legend: bool = True) -> alt.Color:
    keys = _keys(rows)
    scale = alt.Scale(
        domain=[SPOKEN[key] for key in keys], range=[FORMAT_COLOURS[key] for key in keys]
    )
    shown = alt.Legend(columns=2, symbolOpacity=1) if legend else None
    return alt.Color("format:N", title=None, scale=scale, legend=shown)


def format_shape(rows: Sequence[Row]) -> alt.Shape:
    keys = _keys(rows)
    scale = alt.Scale(
        domain=[SPOKEN[key] for key in keys], range=[FORMAT_SHAPES[key] for key in keys]
    )
    return alt.Shape("format:N", title=None, scale=scale, legend=alt.Legend(columns=2))


def _keys(rows: Sequence[Row]) -> list[str]:
    present = {str(row["format"]) for row in rows}
    return [key for key, label in SPOKEN.items() if label in present]


def _formats(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["format"]) for row in rows))


def tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("format:N"),
        alt.Tooltip("loader:N"),
        alt.Tooltip("way:N", title="readers"),
        alt.Tooltip("depth:Q", title="batches ahead"),
        alt.Tooltip("ranks:Q"),
        alt.Tooltip("cache:N"),
        alt.Tooltip("compute_ms:Q", title="compute a step (ms)", format=",.4~r"),
        alt.Tooltip("samples_per_s:Q", title="samples/s", format=",.4~r"),
        alt.Tooltip("mb_per_s:Q", title="MB/s", format=",.4~r"),
        alt.Tooltip("first_ms:Q", title="first batch (ms)", format=",.3~r"),
        alt.Tooltip("stalls:Q"),
        alt.Tooltip("utilisation:Q", title="busy", format=".1%"),
    ]
