"""Theme of the charts of paths: colours, shapes, axes of sizes and times, tooltips."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import Row
from phalanx.report.comparison import TIMES

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
LEGEND = alt.Legend(columns=2, symbolOpacity=1)  # two names fit beside each other on a phone
# 4 B, 64 KB, 1 MB
SIZE_WORDS = (
    "datum.value >= 1073741824 ? datum.value / 1073741824 + ' GB' : "
    "datum.value >= 1048576 ? datum.value / 1048576 + ' MB' : "
    "datum.value >= 1024 ? datum.value / 1024 + ' KB' : datum.value + ' B'"
)


def size_axis(rows: Sequence[Row], title: str = "size of a rank's buffer (logarithmic)") -> alt.X:
    sizes = sorted({int(str(row["bytes"])) for row in rows})
    return alt.X(
        "bytes:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, padding=12, nice=False),
        axis=alt.Axis(values=sizes, labelExpr=SIZE_WORDS, labelOverlap=True, grid=False),
    )


def log_scale() -> alt.Scale:
    return alt.Scale(type="log", padding=10)


def powers_of_ten() -> alt.Axis:
    """Powers of ten as plain numbers, others without a word."""
    return alt.Axis(values=[10.0**power for power in range(-1, 8)], format="~r")


def paths_in_order(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["path"]) for row in rows))


def _keys(rows: Sequence[Row]) -> dict[str, str]:
    return {str(row["path"]): str(row["key"]) for row in rows}


def path_colour(rows: Sequence[Row], *, legend: bool = True) -> alt.Color:
    keys = _keys(rows)
    scale = alt.Scale(domain=list(keys), range=[f"var(--path-{key})" for key in keys.values()])
    if not legend:
        return alt.Color("path:N", scale=scale, legend=None)
    return alt.Color("path:N", title=None, scale=scale, legend=LEGEND)


def path_shape(rows: Sequence[Row]) -> alt.Shape:
    keys = _keys(rows)
    shapes = [SHAPES.get(key, "circle") for key in keys.values()]
    scale = alt.Scale(domain=list(keys), range=shapes)
    return alt.Shape("path:N", title=None, scale=scale, legend=LEGEND)


def tooltip() -> list[alt.Tooltip]:
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
