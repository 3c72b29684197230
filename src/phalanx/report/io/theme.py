"""Theme of the charts of data loading: colours, shapes, lines, tooltips."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Row, table
from phalanx.report.charts.theme import faded_unless, highlight
from phalanx.report.io.comparison import LOADERS, PHRASES

LOADER_COLOURS = {
    "phalanx": "var(--mpi)",
    "torch": "var(--gloo)",
    "torch-batched": "var(--rank-3)",
    "read": "var(--sequential)",
    "read-kept": "var(--rank-5)",
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
        domain=[PHRASES[key] for key in keys], range=[FORMAT_COLOURS[key] for key in keys]
    )
    shown = alt.Legend(columns=2, symbolOpacity=1) if legend else None
    return alt.Color("format:N", title=None, scale=scale, legend=shown)


def format_shape(rows: Sequence[Row]) -> alt.Shape:
    keys = _keys(rows)
    scale = alt.Scale(
        domain=[PHRASES[key] for key in keys], range=[FORMAT_SHAPES[key] for key in keys]
    )
    return alt.Shape("format:N", title=None, scale=scale, legend=alt.Legend(columns=2))


def _keys(rows: Sequence[Row]) -> list[str]:
    present = {str(row["format"]) for row in rows}
    return [key for key, label in PHRASES.items() if label in present]


def formats_in_order(rows: Sequence[Row]) -> list[str]:
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
