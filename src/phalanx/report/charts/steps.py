"""Time of a step by phase."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import part_rows
from phalanx.report.charts.figure import Figure, figure, table
from phalanx.report.charts.theme import faded_unless, highlight
from phalanx.report.comparison import Cell
from phalanx.report.measures import PARTS

BAR_PIXELS = 30
AROUND_BARS_PIXELS = 20
LETTER_FROM_SHARE = 0.05  # of the longest bar; narrower parts get no letter


def step_parts(cells: Sequence[Cell], name: str) -> Figure | None:
    timed = [cell for cell in cells if cell.step_parts_s]
    rows = part_rows(timed)
    if not rows:
        return None
    order = list(dict.fromkeys(str(row["bar"]) for row in rows))
    picked = highlight("part", "part_picked")
    base = alt.Chart(table()).encode(
        y=alt.Y("bar:N", title=None, sort=order, axis=alt.Axis(domain=False)),
        opacity=faded_unless(picked),
    )
    longest_ms = max(float(str(row["end_ms"])) for row in rows)
    letters = (
        base.transform_filter(f"datum.part_ms >= {LETTER_FROM_SHARE * longest_ms}")
        .transform_calculate(middle_ms="(datum.start_ms + datum.end_ms) / 2")
        .mark_text(fontSize=11, fontWeight=600)
        .encode(x="middle_ms:Q", text="letter:N", color=_ink())
    )
    return figure(
        alt.layer(_bars(base).add_params(picked), letters),
        rows,
        name=name,
        title="Where a step\N{RIGHT SINGLE QUOTATION MARK}s time goes",
        caption="A mean step, over ranks and steps: data, forward, backward, communication that "
        "was waited for, optimizer.",
        source="step events: data_s, forward_s, backward_s, communication_s, optimizer_s",
        runs=[measure.name for cell in timed for measure in cell.runs],
        height_pixels=len(order) * BAR_PIXELS + AROUND_BARS_PIXELS,
    )


def _bars(base: alt.Chart) -> alt.Chart:
    bars: alt.Chart = base.mark_bar(
        stroke="var(--surface)", strokeWidth=1, height={"band": 0.74}
    ).encode(
        x=alt.X("start_ms:Q", title="time of a step (ms)", axis=alt.Axis(grid=True)),
        x2="end_ms:Q",
        fill=_fill(),
        tooltip=[
            alt.Tooltip("configuration:N"),
            alt.Tooltip("part:N"),
            alt.Tooltip("part_ms:Q", title="time (ms)", format=",.4f"),
            alt.Tooltip("share:Q", title="share of the step", format=".1%"),
        ],
    )
    return bars


def _fill() -> alt.Fill:
    colours = [f"var(--{part})" for part in PARTS]
    scale = alt.Scale(domain=list(PARTS), range=colours)
    with_letter = "upper(slice(datum.label, 0, 1)) + '  ' + datum.label"
    legend = alt.Legend(columns=2, labelExpr=with_letter)
    return alt.Fill("part:N", title=None, scale=scale, legend=legend)


def _ink() -> alt.Color:
    """Return the text colour for each fill; a channel of its own, so that it has its own scale."""
    colours = [f"var(--on-{part})" for part in PARTS]
    return alt.Color("part:N", scale=alt.Scale(domain=list(PARTS), range=colours))
