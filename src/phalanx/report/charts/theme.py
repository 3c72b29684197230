"""Theme of the charts: colours, shapes, dashes, axes.

Colours are names of CSS variables, so charts follow the page's colour scheme; shapes and dashes
repeat the colours, for readers who do not tell these apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import Row, Value
from phalanx.report.comparison import TIMES

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
STRATEGIES = ("sequential", "mpi", "shared", "gloo")
SHAPES = {"sequential": "circle", "mpi": "square", "shared": "diamond", "gloo": "triangle-up"}
DASHES = ([1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [1, 4], [12, 4])
OTHER_COLOURS = ("--rank-2", "--rank-3", "--rank-4", "--path-halving", "--path-phalanx", "--mpi",
                 "--gloo", "--shared", "--rank-5")  # fmt: skip
OTHER_SHAPES = ("cross", "triangle-down", "triangle-right", "triangle-left", "circle", "square",
                "triangle-up", "diamond", "stroke")  # fmt: skip
RANK_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
NUM_RANK_COLOURS = 6
FADED = 0.12
LOG_FROM_RATIO = 16  # wider ranges than this are drawn on a logarithmic axis

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


def strategy_scales(rows: Iterable[Row]) -> dict[str, Any]:
    """Colour and shape of the strategies that occur, merged into one legend."""
    present = list(dict.fromkeys(str(row["strategy"]) for row in rows))
    domain = [strategy for strategy in STRATEGIES if strategy in present]
    others = [strategy for strategy in present if strategy not in STRATEGIES]
    colours = [f"var(--{strategy})" for strategy in domain] + _others(
        [f"var({name})" for name in OTHER_COLOURS], [f"var(--{s})" for s in domain], len(others)
    )
    shapes = [SHAPES[strategy] for strategy in domain]
    shapes += _others(OTHER_SHAPES, shapes, len(others))
    domain += others
    legend = alt.Legend(columns=2) if others else alt.Legend()
    return {
        "color": alt.Color(
            "strategy:N",
            title=None,
            scale=alt.Scale(domain=domain, range=colours),
            legend=legend,
        ),
        "shape": alt.Shape(
            "strategy:N", title=None, scale=alt.Scale(domain=domain, range=shapes), legend=legend
        ),
    }


def _others(offered: Sequence[str], taken: Sequence[str], number: int) -> list[str]:
    """Return unused values from those offered, cycling when they run out."""
    free = [one for one in offered if one not in taken] or list(offered)
    return [free[i % len(free)] for i in range(number)]


def width_dash(rows: Iterable[Row]) -> alt.StrokeDash:
    """A dash for each number of ranks and threads."""
    order = {(row["workers"], row["ranks"]): str(row["width"]) for row in rows}
    domain = [order[key] for key in sorted(order, key=_as_numbers)]
    dashes = [DASHES[i % len(DASHES)] for i in range(len(domain))]
    return alt.StrokeDash(
        "width:N",
        title="ranks",
        scale=alt.Scale(domain=domain, range=dashes),
        legend=alt.Legend(symbolType="stroke", symbolSize=240, columns=4),
    )


def _as_numbers(key: tuple[Value, Value]) -> tuple[int, int]:
    return int(str(key[0])), int(str(key[1]))


def worker_title(rows: Iterable[Row]) -> str:
    """Return the axis title for the number of workers in `rows`."""
    rows = list(rows)
    if any(row["strategy"] != "sequential" and row["threads"] != 1 for row in rows):
        return f"ranks {TIMES} threads"
    if all(row["strategy"] == "sequential" for row in rows):
        return "threads"
    alone = {row["threads"] for row in rows if row["strategy"] == "sequential"}
    return "ranks (sequential: threads)" if alone - {1} else "ranks"


def worker_axis(rows: Sequence[Row], field: str = "workers") -> alt.X:
    """Whole numbers only, at the values that occur."""
    values = sorted({int(str(row["ranks" if field == "ranks" else "workers"])) for row in rows})
    wide = values[-1] / values[0] > LOG_FROM_RATIO
    scale = alt.Scale(type="log", base=2) if wide else alt.Scale(domain=[0.7, values[-1] + 0.3])
    return alt.X(
        f"{field}:Q",
        title="ranks" if field == "ranks" else worker_title(rows),
        scale=scale,
        axis=alt.Axis(values=values, format="d"),
    )


def time_scale(times_s: Sequence[float], *, from_zero: bool) -> alt.Scale:
    """Linear, or logarithmic where the times are too far apart for that."""
    if is_wide(times_s):
        return alt.Scale(type="log", padding=12)
    return alt.Scale(zero=from_zero) if from_zero else alt.Scale(zero=False, nice=False, padding=18)


def time_axis(times_s: Sequence[float]) -> alt.Axis:
    """Return a time axis; on a logarithmic scale with ticks at 1, 2, 5, 10."""
    if not is_wide(times_s):
        return alt.Axis()
    lowest, highest = (math.floor(math.log10(bound(times_s))) for bound in (min, max))
    powers = range(lowest, highest + 1)
    return alt.Axis(values=[digit * 10.0**power for power in powers for digit in (1, 2, 5)])


def time_title(what: str, times_s: Sequence[float]) -> str:
    return f"{what} (s, logarithmic)" if is_wide(times_s) else f"{what} (s)"


def is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > LOG_FROM_RATIO


def highlight(field: str, name: str) -> alt.Parameter:
    """A click on the legend picks out its series; a second click, or one beside it, lets go."""
    return alt.selection_point(fields=[field], bind="legend", name=name)


def faded_unless(*selections: alt.Parameter) -> Any:
    """Full opacity for what is picked out (everything, at first)."""
    chosen: Any = selections[0]
    for selection in selections[1:]:
        chosen = chosen & selection
    return alt.condition(chosen, alt.value(1), alt.value(FADED))
