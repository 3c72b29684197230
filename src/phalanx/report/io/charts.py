"""Loading as charts: rates, utilisation, waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from phalanx.records.io import READS, Cache
from phalanx.report.charts.figure import AnyChart, Chart, Row, numbers
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


@dataclass(frozen=True, kw_only=True)
class Loading:
    """A measurement from one state of the cache."""

    measure: IoMeasure
    cache: Cache


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
    *("compute_ms|compute per step (ms)|,.4~r", "samples_per_s|samples/s|,.4~r"),
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


def _fastest_rows(of: Loading) -> list[Row]:
    """Return, flat out, the fastest way of each loader in every format."""
    points = in_cache(of.measure.flat, of.cache)
    best = best_by(points, lambda p: (p.cell.format, p.cell.loader), lambda p: p.bytes_per_s)
    return rows_of(best.values())


def _busiest_rows(of: Loading) -> list[Row]:
    """Return each format's way with the best utilisation, on the fewest ranks."""
    ranks = fewest_ranks(of.measure)
    points = [p for p in own(in_cache(of.measure.paced, of.cache)) if p.cell.ranks == ranks]
    return with_floor(of, busiest(points).values())


def _paced_rows(of: Loading) -> list[Row]:
    """Return the best utilisation of each format at each compute time."""
    points = own(in_cache(of.measure.with_compute, of.cache))
    best = best_by(points, lambda p: (p.cell.format, p.compute_s), busy)
    return with_floor(of, [best[key] for key in sorted(best)])


def with_floor(of: Loading, points: Iterable[IoPoint]) -> list[Row]:
    return [{**row, "floor": floor_of(of.measure)} for row in rows_of(points)]


def _rows_over(value_of: Callable[[IoPoint], int | None]) -> Callable[[Loading], list[Row]]:
    """Return the rows of the fastest of each format at each value; none where there is one value.

    value_of: None leaves a point out.
    """

    def rows(of: Loading) -> list[Row]:
        points = [p for p in own(in_cache(of.measure.flat, of.cache)) if value_of(p) is not None]
        best = best_by(points, lambda p: (p.cell.format, value_of(p)), lambda p: p.bytes_per_s)
        several = len({value for _, value in best}) > 1
        return rows_of(best[key] for key in sorted(best)) if several else []

    return rows


def _draw_over(field: str, title: str) -> Callable[[Sequence[Row]], AnyChart]:
    x = alt.X(f"{field}:O", title=title, axis=alt.Axis(labelAngle=0))
    y = alt.Y("mb_per_s:Q", title="MB/s flat out", scale=alt.Scale(zero=True))
    return lambda rows: lines(x, y, known_series("format", rows, FORMAT_LOOKS), TOOLTIP)


def _bars(rows: Sequence[Row], field: str, title: str, **more: Any) -> AnyChart:
    """A bar a format."""
    colour = known_series("format", rows, FORMAT_LOOKS, has_legend=False)
    return bars(rows, field, title, by="format", tooltip=TOOLTIP, colour=colour, **more)


def _draw_utilisation(rows: Sequence[Row]) -> AnyChart:
    drawn = _bars(
        rows,
        "utilisation",
        "busy: compute ÷ total time",
        spread=("utilisation_low", "utilisation_high"),
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    return alt.layer(drawn, dashed().encode(x=alt.datum(rows[0]["floor"])))


def _draw_busy_over_compute(rows: Sequence[Row]) -> AnyChart:
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
    drawn = lines(x, y, known_series("format", rows, FORMAT_LOOKS), TOOLTIP)
    return alt.layer(drawn, dashed().encode(y=alt.datum(rows[0]["floor"])))


_chart = partial(Chart[Loading], source=SOURCE, runs=lambda of: [of.measure.name])
THROUGHPUT = _chart(
    title="What comes through",
    caption="Bytes of samples per second when nothing is computed; of each loader its fastest "
    "way, median over epochs. The line runs from the slowest epoch to the fastest.",
    rows=_fastest_rows,
    draw=lambda rows: bars(
        rows,
        "mb_per_s",
        "MB/s flat out",
        by="format",
        tooltip=TOOLTIP,
        colour=known_series("loader", rows, LOADER_LOOKS),
        spread=("mb_low", "mb_high"),
        offset=alt.YOffset("loader:N", sort=list(LOADER_LOOKS)),
    ),
    height=lambda rows: 60 + 26 * len(rows),
)
UTILISATION = _chart(
    title="How busy the accelerator is",
    caption="Median over epochs, of each format its best way; the dashed line is the floor of "
    "the profile, the thin one runs from the worst epoch to the best.",
    rows=_busiest_rows,
    draw=_draw_utilisation,
    height=lambda rows: bars_height(rows, "format"),
)
FIRST_BATCH = _chart(
    title="Time to the first batch",
    caption="From the start of the epoch; later ones are loaded while it computes. Of each "
    "format the way that keeps the accelerator busiest.",
    rows=_busiest_rows,
    draw=lambda rows: _bars(rows, "first_ms", "until the first batch is there (ms)"),
    height=lambda rows: bars_height(rows, "format"),
)
BUSY_OVER_COMPUTE = _chart(
    title="How busy an accelerator is, from fast to slow ones",
    caption="Of each format the best way at each compute time; left the storage holds the "
    "accelerator up, right it waits for it. The dashed line is the floor.",
    rows=_paced_rows,
    draw=_draw_busy_over_compute,
    height=330,
)
BY_READERS = _chart(
    title="More readers",
    caption="Bytes per second flat out by the number of readers; one line per format, its "
    "fastest depth.",
    rows=_rows_over(lambda point: point.cell.readers),
    draw=_draw_over("readers", "readers"),
    height=300,
)
BY_DEPTH = _chart(
    title="More batches ahead",
    caption="Bytes per second flat out by the number of batches that may wait; one line per "
    "format, its fastest number of readers.",
    rows=_rows_over(lambda point: point.cell.depth if point.cell.readers else None),
    draw=_draw_over("depth", "batches ahead"),
    height=300,
)
BY_RANKS = _chart(
    title="More ranks",
    caption="Bytes per second of all ranks together, each on data of its own; one line per format, "
    "its fastest way.",
    rows=_rows_over(lambda point: point.cell.ranks),
    draw=_draw_over("ranks", "ranks"),
    height=300,
)
