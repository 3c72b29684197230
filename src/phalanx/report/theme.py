"""Theme of all charts: colours, shapes, dashes, axes.

Colours are names of CSS variables, so charts follow the page's colour scheme; shapes and dashes
repeat the colours, for readers who do not tell these apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

import altair as alt

from phalanx.report.content import Row

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
Look = tuple[str, str]
"""A colour and a shape."""
STRATEGIES: dict[str, Look] = {
    "sequential": ("--sequential", "circle"),
    "mpi": ("--mpi", "square"),
    "shared": ("--shared", "diamond"),
    "gloo": ("--gloo", "triangle-up"),
}
OTHER_COLOURS = ("--rank-2", "--rank-3", "--rank-4", "--path-halving", "--path-phalanx", "--mpi",
                 "--gloo", "--shared", "--rank-5")  # fmt: skip
OTHER_SHAPES = ("cross", "triangle-down", "triangle-right", "triangle-left", "circle", "square",
                "triangle-up", "diamond", "stroke")  # fmt: skip
NUMBERED: tuple[Look, ...] = (
    ("--rank-0", "circle"),
    ("--rank-1", "square"),
    ("--rank-2", "triangle-up"),
    ("--rank-3", "diamond"),
    ("--rank-4", "cross"),
    ("--rank-5", "triangle-down"),
)
"""Looks of ranks, and of other values that are in an order."""
PHASES = {"data": "--data", "forward": "--forward", "backward": "--backward",
          "communication": "--communication", "optimizer": "--optimizer"}  # fmt: skip
DASHES = ([1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [1, 4], [12, 4])
FADED = 0.12
LOG_FROM_RATIO = 16  # wider ranges than this are drawn on a logarithmic axis

LOOKS: dict[str, Look] = {
    **STRATEGIES,
    "sequential program": ("--sequential", "circle"),
    "summed gradients": ("--mpi", "square"),
    "servers, local steps": ("--rank-3", "diamond"),
    "sharded state": ("--rank-2", "triangle-up"),
    "split layers, pipelines": ("--gloo", "cross"),
    "predicted": ("--mpi", "circle"),
    "measured": ("--gloo", "triangle-up"),
    "measured here": ("--rank-2", "square"),
    "in the node": ("--rank-0", "circle"),
    "between nodes": ("--rank-1", "square"),
    "link not measured": ("--rank-4", "cross"),
    "waiting for others": ("--data", "triangle-up"),
    "plain": ("--sequential", "circle"),
    "linear": ("--gloo", "triangle-up"),
    "linear, warm-up": ("--mpi", "square"),
    "square root": ("--rank-4", "stroke"),
    "square root, warm-up": ("--rank-3", "cross"),
    "LARS": ("--rank-2", "diamond"),
    "LAMB": ("--shared", "triangle-down"),
    "undisturbed": ("--sequential", "circle"),
    "survived in place": ("--mpi", "square"),
    "stopped ranks": ("--shared", "diamond"),
    "restarted": ("--gloo", "triangle-up"),
    "preempted": ("--path-mpi", "cross"),
    "Phalanx": ("--mpi", "square"),
    "DataLoader": ("--gloo", "triangle-up"),
    "DataLoader, whole batches": ("--rank-3", "diamond"),
    "plain read": ("--sequential", "circle"),
    "plain read, kept": ("--rank-5", "stroke"),
    "many small files": ("--rank-1", "triangle-up"),
    "tar shards": ("--rank-0", "circle"),
    "memory maps": ("--rank-2", "square"),
    "HDF5": ("--rank-3", "diamond"),
    "Parquet": ("--rank-4", "cross"),
    "copying": ("--rank-3", "circle"),
    "adding": ("--rank-5", "square"),
    "window": ("--path-window", "circle"),
    "phalanx": ("--path-phalanx", "square"),
    "torch": ("--path-torch", "diamond"),
    "mpi library": ("--path-mpi", "triangle-up"),
    "nccl": ("--path-nccl", "cross"),
    "ring": ("--path-ring", "triangle-right"),
    "tree": ("--path-tree", "triangle-left"),
    "halving": ("--path-halving", "stroke"),
    "naive": ("--path-naive", "cross"),
    "direct": ("--path-direct", "circle"),
}
"""Colour and shape of what has the same on every page."""

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink-soft)",
        "titleColor": "var(--ink-soft)",
        "gridColor": "var(--grid)",
        "domainColor": "var(--axis)",
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelPadding": 7,
        "titlePadding": 10,
    },
    "axisX": {"grid": False, "labelFlush": False, "tickCount": 5},
    "axisY": {"domain": False, "tickCount": 5},
    "legend": {
        "orient": "top",
        "direction": "horizontal",
        "titleOrient": "left",
        "titleColor": "var(--ink-soft)",
        "labelColor": "var(--ink)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
        "symbolBaseStrokeColor": "var(--ink-soft)",
        "columnPadding": 14,
        "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
    },
}


class Series(NamedTuple):
    """The channels of a column of names; dashes are for lines without marks."""

    color: alt.Color
    shape: alt.Shape
    dash: alt.StrokeDash


def series_of(
    field: str, rows: Sequence[Row], look: str = "", title: str = "", *, has_legend: bool = True
) -> Series:
    """Return the names that occur in a column, with their colours and shapes.

    look: column of the names that colours are found by. Numbers are in an order; names that have no
    look of their own take one in turn.
    """
    names: dict[Any, Any] = {
        row[field]: row[look or field] for row in rows if row[field] is not None
    }
    legend: dict[str, Any] = {"symbolOpacity": 1}
    if all(isinstance(name, int | float) for name in names):
        looks, title = dict(zip(sorted(names), cycle(NUMBERED), strict=False)), title or field
    else:
        keys = [key for key in LOOKS if key in names.values()]
        looks = {name: LOOKS[key] for key in keys for name in names if names[name] == key}
        others = [name for name in names if name not in looks]
        taken = [set(kind) for kind in zip(*looks.values(), strict=True)] or [set(), set()]
        free = (
            [one for one in offered if one not in used] or offered
            for offered, used in zip((OTHER_COLOURS, OTHER_SHAPES), taken, strict=True)
        )
        looks |= zip(others, zip(*map(cycle, free), strict=False), strict=False)
        legend |= {"columns": 2} if others or len(looks) > 4 else {}

    def channel(kind: Any, values: Sequence[Any]) -> Any:
        return kind(
            f"{field}:N",
            title=title or None,
            scale=alt.Scale(domain=list(looks), range=list(values)),
            legend=alt.Legend(**legend) if has_legend else None,
        )

    return Series(
        color=channel(alt.Color, [f"var({colour})" for colour, _ in looks.values()]),
        shape=channel(alt.Shape, [shape for _, shape in looks.values()]),
        dash=channel(alt.StrokeDash, [DASHES[i % len(DASHES)] for i in range(len(looks))]),
    )


def log_ticks(values: Sequence[float]) -> alt.Axis:
    """Return ticks at 1, 2, 5, 10 around the values."""
    lowest, highest = (math.floor(math.log10(bound(values))) for bound in (min, max))
    powers = range(lowest, highest + 1)
    return alt.Axis(values=[digit * 10.0**power for power in powers for digit in (1, 2, 5)])


def is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > LOG_FROM_RATIO


def highlight(field: str) -> alt.Parameter:
    """A click on the legend picks out its series; a second click, or one beside it, lets go."""
    return alt.selection_point(fields=[field], bind="legend", name=f"{field}_picked")


def faded_unless(picked: alt.Parameter) -> Any:
    """Full opacity for what is picked out (everything, at first)."""
    return alt.condition(picked, alt.value(1), alt.value(FADED))


def tooltips(*fields: str) -> list[alt.Tooltip]:
    """Return tooltips of `field|title|format`; a title and a format may be left out."""
    made = []
    for field in fields:
        name, title, form = [*field.split("|"), "", ""][:3]
        kind = "" if ":" in name else ":Q" if form else ":N"
        tooltip = alt.Tooltip(f"{name}{kind}")
        if title:
            tooltip["title"] = title
        if form:
            tooltip["format"] = form
        made.append(tooltip)
    return made
