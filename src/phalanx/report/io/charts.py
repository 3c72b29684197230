"""Loading as charts: rates, utilisation, waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt

from phalanx.records.io import READS, Cache
from phalanx.report.charts.figure import Figure, Row, figure, numbers
from phalanx.report.charts.shapes import bars, bars_height, dashed, lines
from phalanx.report.charts.theme import known_series, tooltips
from phalanx.report.io.comparison import (
    LOADERS,
    PHRASES,
    best_by,
    busiest,
    busy,
    fewest_ranks,
    floor_of,
    in_cache,
    own,
)
from phalanx.report.io.measures import IoMeasure, IoPoint

SOURCE = "io_epoch events of all ranks: samples, bytes, total_s, waits_s"
MEGABYTE = 1e6
LOADER_LOOKS = {
    LOADERS["phalanx"]: ("--mpi", ""),
    LOADERS["torch"]: ("--gloo", ""),
    LOADERS["torch-batched"]: ("--rank-3", ""),
    LOADERS["read"]: ("--sequential", ""),
    LOADERS["read-kept"]: ("--rank-5", ""),
}
FORMAT_LOOKS = {
    PHRASES["files"]: ("--rank-1", "triangle-up"),
    PHRASES["tar"]: ("--rank-0", "circle"),
    PHRASES["npy"]: ("--rank-2", "square"),
    PHRASES["hdf5"]: ("--rank-3", "diamond"),
    PHRASES["parquet"]: ("--rank-4", "cross"),
}
TOOLTIP = tooltips(
    *("format", "loader", "way|readers", "depth:Q|batches ahead", "ranks:Q", "cache"),
    *("compute_ms|compute a step (ms)|,.4~r", "samples_per_s|samples/s|,.4~r"),
    *("mb_per_s|MB/s|,.4~r", "first_ms|first batch (ms)|,.3~r", "stalls:Q"),
    "utilisation|busy|.1%",
)


def rows_of(points: Iterable[IoPoint]) -> list[Row]:
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
    points = in_cache(measure.flat, cache)
    best = best_by(points, lambda p: (p.cell.format, p.cell.loader), lambda p: p.bytes_per_s)
    rows = rows_of(best.values())
    if not rows:
        return None
    return figure(
        bars(
            rows,
            "mb_per_s",
            "MB/s flat out",
            by="format",
            tooltip=TOOLTIP,
            colour=known_series("loader", rows, LOADER_LOOKS),
            spread=("mb_low", "mb_high"),
            offset=alt.YOffset("loader:N", sort=list(LOADER_LOOKS)),
        ),
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
    rows = _busiest_rows(measure, cache)
    if not rows:
        return None
    drawn = bars(
        rows,
        "utilisation",
        "busy: compute ÷ total time",
        by="format",
        tooltip=TOOLTIP,
        colour=known_series("format", rows, FORMAT_LOOKS, has_legend=False),
        spread=("utilisation_low", "utilisation_high"),
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    return figure(
        alt.layer(drawn, dashed().encode(x=alt.datum(floor_of(measure)))),
        rows,
        name=name,
        title="How busy the accelerator is",
        caption="Median over epochs, of each format its best way; the dashed line is the floor of "
        "the profile, the thin one runs from the worst epoch to the best.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=bars_height(rows, "format"),
    )


def first_batch(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    rows = _busiest_rows(measure, cache)
    if not rows:
        return None
    return figure(
        bars(
            rows,
            "first_ms",
            "until the first batch is there (ms)",
            by="format",
            tooltip=TOOLTIP,
            colour=known_series("format", rows, FORMAT_LOOKS, has_legend=False),
        ),
        rows,
        name=name,
        title="Time to the first batch",
        caption="From the start of the epoch; later ones are loaded while it computes. Of each "
        "format the way that keeps the accelerator busiest.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=bars_height(rows, "format"),
    )


def _busiest_rows(measure: IoMeasure, cache: Cache) -> list[Row]:
    """Return each format's way with the best utilisation, on the fewest ranks."""
    ranks = fewest_ranks(measure)
    points = [point for point in own(in_cache(measure.paced, cache)) if point.cell.ranks == ranks]
    return rows_of(busiest(points).values())


def busy_over_compute(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """A line a format: its best utilisation at each compute time."""
    points = own(in_cache(measure.with_compute, cache))
    best = best_by(points, lambda p: (p.cell.format, p.compute_s), busy)
    rows = rows_of(best[key] for key in sorted(best))
    if not rows:
        return None
    x = alt.X(
        "compute_ms:Q",
        title="compute of a step (ms, logarithmic)",
        scale=alt.Scale(type="log", padding=12, nice=False),
        axis=alt.Axis(values=sorted(set(numbers(rows, "compute_ms"))), format=".3~r", grid=False),
    )
    y = alt.Y(
        "utilisation:Q",
        title="busy: compute \N{DIVISION SIGN} total time",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    floor = dashed().encode(y=alt.datum(floor_of(measure)))
    return figure(
        alt.layer(lines(x, y, known_series("format", rows, FORMAT_LOOKS), TOOLTIP), floor),
        rows,
        name=name,
        title="How busy an accelerator is, from fast to slow ones",
        caption="Of each format the best way at each compute time; left the storage holds the "
        "accelerator up, right it waits for it. The dashed line is the floor.",
        source=SOURCE,
        runs=[measure.name],
        height_pixels=330,
    )


def by_readers(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    """Lines over the number of readers, where several were measured."""
    return _over(
        measure,
        own(in_cache(measure.flat, cache)),
        lambda point: point.cell.readers,
        ("readers", "readers"),
        name=name,
        title="More readers",
        caption="Bytes a second flat out by the number of readers; a line a format, its fastest "
        "depth.",
    )


def by_depth(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    return _over(
        measure,
        [point for point in own(in_cache(measure.flat, cache)) if point.cell.readers],
        lambda point: point.cell.depth,
        ("depth", "batches ahead"),
        name=name,
        title="More batches ahead",
        caption="Bytes a second flat out by the number of batches that may wait; a line a format, "
        "its fastest number of readers.",
    )


def by_ranks(measure: IoMeasure, cache: Cache, name: str) -> Figure | None:
    return _over(
        measure,
        own(in_cache(measure.flat, cache)),
        lambda point: point.cell.ranks,
        ("ranks", "ranks"),
        name=name,
        title="More ranks",
        caption="Bytes a second of all ranks together, each on data of its own; a line a format, "
        "its fastest way.",
    )


def _over(
    measure: IoMeasure,
    points: Sequence[IoPoint],
    value_of: Callable[[IoPoint], int],
    axis: tuple[str, str],
    **text: Any,
) -> Figure | None:
    """The fastest of each format at each value; None where there is one value.

    axis: field and title.
    """
    best = best_by(points, lambda p: (p.cell.format, value_of(p)), lambda p: p.bytes_per_s)
    if len({value for _, value in best}) < 2:
        return None
    rows = rows_of(best[key] for key in sorted(best))
    y = alt.Y("mb_per_s:Q", title="MB/s flat out", scale=alt.Scale(zero=True))
    x = alt.X(f"{axis[0]}:O", title=axis[1], axis=alt.Axis(labelAngle=0))
    drawn = lines(x, y, known_series("format", rows, FORMAT_LOOKS), TOOLTIP)
    return figure(drawn, rows, source=SOURCE, runs=[measure.name], height_pixels=300, **text)
