"""How charts look. Colours are names of CSS variables, so the page's colour scheme is theirs too;
shapes and dashes say the same as the colours, for those who do not tell these apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from phalanx.report.charts.figure import Row

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
STRATEGIES = ("sequential", "mpi", "gloo")
SHAPES = {"sequential": "circle", "mpi": "square", "gloo": "triangle-up"}
DASHES = ([1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [1, 4], [12, 4])
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
    "axisX": {"grid": False, "labelFlush": False},
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
    present = {row["strategy"] for row in rows}
    domain = [strategy for strategy in STRATEGIES if strategy in present]
    colours = [f"var(--{strategy})" for strategy in domain]
    shapes = [SHAPES[strategy] for strategy in domain]
    return {
        "color": alt.Color("strategy:N", title=None, scale=alt.Scale(domain=domain, range=colours)),
        "shape": alt.Shape("strategy:N", title=None, scale=alt.Scale(domain=domain, range=shapes)),
    }


def worker_dash(rows: Iterable[Row]) -> alt.StrokeDash:
    """A dash for each number of workers."""
    domain = sorted({int(str(row["workers"])) for row in rows})
    dashes = [DASHES[i % len(DASHES)] for i in range(len(domain))]
    return alt.StrokeDash(
        "workers:O", title=worker_title(rows), scale=alt.Scale(domain=domain, range=dashes)
    )


def worker_title(rows: Iterable[Row]) -> str:
    """What the number of workers counts in these rows."""
    alone = {row["threads"] for row in rows if row["strategy"] == "sequential"}
    spread = {row["threads"] for row in rows if row["strategy"] != "sequential"}
    if spread - {1}:
        return "ranks \N{MULTIPLICATION SIGN} threads"
    if not spread:
        return "threads"
    return "ranks (sequential: threads)" if alone - {1} else "ranks"


def worker_axis(rows: Sequence[Row]) -> alt.X:
    """Whole numbers only, at the values that occur."""
    values = sorted({int(str(row["workers"])) for row in rows})
    wide = values[-1] / values[0] > LOG_FROM_RATIO
    scale = alt.Scale(type="log", base=2) if wide else alt.Scale(domain=[0.7, values[-1] + 0.3])
    return alt.X(
        "workers:Q",
        title=worker_title(rows),
        scale=scale,
        axis=alt.Axis(values=values, format="d"),
    )


def highlight(field: str, name: str) -> alt.Parameter:
    """A click on the legend picks out its series; a second click, or one beside it, lets go."""
    return alt.selection_point(fields=[field], bind="legend", name=name)


def faded_unless(*selections: alt.Parameter) -> Any:
    """Full opacity for what is picked out (everything, at first)."""
    chosen: Any = selections[0]
    for selection in selections[1:]:
        chosen = chosen & selection
    return alt.condition(chosen, alt.value(1), alt.value(FADED))
