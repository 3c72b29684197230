"""Loading as charts: rates, utilisation, waits."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.records.io import READS, Cache
from phalanx.report.charts.figure import Figure, Row, figure, table
from phalanx.report.io.comparison import (
    LOADERS,
    PHRASES,
    fewest_ranks,
    floor_of,
    in_cache,
    own,
)
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.theme import format_colour, formats_in_order, lines, loader_colour, tooltip

SOURCE = "io_epoch events of all ranks: samples, bytes, total_s, waits_s"
MEGABYTE = 1e6


def rows_of(points: Sequence[IoPoint]) -> list[Row]:
    """A row a way and pace."""
    return [_row(point) for point in points]


def _row(point: IoPoint) -> Row:
    cell = point.cell
    low, high = point.range_bytes_per_s
    shares = point.range_utilisation or (None, None)
    readers = f"{cell.readers} {cell.kind}" if cell.readers else "no readers"
    return {
        "format": PHRASES[cell.format],
        "loader": LOADERS[cell.loader],
        "kind": cell.kind,
        "cache": cell.cache,
        "readers": cell.readers,
        "depth": cell.depth,
        "ranks": cell.ranks,
        "way": readers if cell.loader not in READS else "one process",
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
    best: dict[tuple[str, str], IoPoint] = {}
    for point in in_cache(measure.flat, cache):
        key = (point.cell.format, point.cell.loader)
        if key not in best or point.bytes_per_s > best[key].bytes_per_s:
            best[key] = point
    if not best:
        return None
    rows = rows_of(list(best.values()))
    base = alt.Chart(table()).encode(
        y=alt.Y("format:N", title=None, sort=formats_in_order(rows)),
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
    """Draw the utilisation with compute, a bar a format, against the floor."""
    rows = rows_of(_busiest(measure, cache))
    if not rows:
        return None
    base = alt.Chart(table()).encode(y=alt.Y("format:N", title=None, sort=formats_in_order(rows)))
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
    spread = base.mark_rule(color="var(--ink-soft)")
    spread = spread.encode(x="utilisation_low:Q", x2="utilisation_high:Q")
    floor = alt.Chart(table()).mark_rule(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
    return figure(
        alt.layer(bars, spread, floor.encode(x=alt.datum(floor_of(measure)))),
        rows,
        name=name,
        title="How busy the accelerator is",
        caption="Median over epochs, of each format its best way; the dashed line is the floor of "
        "the profile, the thin one runs from the worst epoch to the best.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=60 + 32 * len(rows),
    )


def first_batch(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    rows = rows_of(_busiest(measure, cache))
    if not rows:
        return None
    bars = alt.Chart(table()).mark_bar(cornerRadiusEnd=2)
    bars = bars.encode(
        y=alt.Y("format:N", title=None, sort=formats_in_order(rows)),
        x=alt.X("first_ms:Q", title="until the first batch is there (ms)"),
        color=format_colour(rows, legend=False),
        tooltip=tooltip(),
    )
    return figure(
        bars,
        rows,
        name=name,
        title="Time to the first batch",
        caption="From the start of the epoch; later ones are loaded while it computes. Of each "
        "format the way that keeps the accelerator busiest.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=60 + 32 * len(rows),
    )


def _busiest(measure: IoMeasure, cache: Cache) -> list[IoPoint]:
    """Return each format's way with the best utilisation, on the fewest ranks."""
    ranks = fewest_ranks(measure)
    best: dict[str, IoPoint] = {}
    for point in own(in_cache(measure.paced, cache)):
        known = best.get(point.cell.format)
        if point.cell.ranks == ranks and (
            known is None or (point.utilisation or 0.0) > (known.utilisation or 0.0)
        ):
            best[point.cell.format] = point
    return list(best.values())


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
    points: Sequence[IoPoint],
    field: str,
    axis: str,
    *,
    name: str,
    title: str,
    caption: str,
) -> Figure | None:
    """The fastest of each format at each value of a field; None where it has one value."""
    best: dict[tuple[str, int], IoPoint] = {}
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
