"""Shares of a step by link: in the node, between nodes, waiting for others."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.cell_links import LINKS, link_share, over_nodes, step_time
from phalanx.report.charts.chart_rows import layout_row
from phalanx.report.charts.figure import AnyChart, Chart, Row, numbers
from phalanx.report.charts.shapes import bars
from phalanx.report.charts.theme import Look, known_series, tooltips
from phalanx.report.comparison import Cell, runs_of

LOOKS: dict[str, Look] = {
    LINKS["node"]: ("--rank-0", "circle"),
    LINKS["network"]: ("--rank-1", "square"),
    LINKS["untold"]: ("--rank-4", "cross"),
    LINKS["waiting"]: ("--data", "triangle-up"),
}


def link_rows(cells: Sequence[Cell]) -> list[Row]:
    """One row a link of a configuration whose share was measured."""
    return [
        {
            **layout_row(cell.layout),
            "nodes": cell.layout.nodes,
            "link": words,
            "share": share.estimate,
            "share_low": share.low,
            "share_high": share.high,
            "step_ms": 1e3 * (step_time(cell) or 0.0),
            "runs": len(cell.runs),
        }
        for cell in over_nodes(cells)
        for link, words in LINKS.items()
        if (share := link_share(cell, link)) is not None
    ]


def _draw(rows: Sequence[Row]) -> AnyChart:
    return bars(
        rows,
        "share",
        "share of a step",
        by="configuration",
        tooltip=tooltips(
            *("configuration", "link", "share||.1%", "share_low|from|.1%", "share_high|to|.1%"),
            *("step_ms|step (ms)|,.4f", "runs:Q"),
        ),
        colour=known_series("link", rows, LOOKS),
        spread=("share_low", "share_high") if numbers(rows, "share_low") else None,
        offset=alt.YOffset("link:N", sort=list(LOOKS)),
        axis=alt.Axis(format="%"),
    )


LINK_SHARES = Chart[Sequence[Cell]](
    title="Share of a step by link",
    caption="Of a mean step: exchange of gradients in the memory of a node and between nodes, as "
    "the rank that came last to it has measured them, and what the other ranks waited for it, "
    "mean over ranks. Lines: intervals of 95 % over runs.",
    source="step events: communication_s, node_s, network_s of all ranks",
    rows=link_rows,
    runs=lambda cells: runs_of(over_nodes(cells)),
    draw=_draw,
    height=lambda rows: 60 + 26 * len(rows),
)
