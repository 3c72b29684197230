"""Communication hidden behind the backward pass, and the share that could be hidden."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import layout_row
from phalanx.report.charts.figure import Figure, Row, figure, table
from phalanx.report.charts.theme import faded_unless, highlight
from phalanx.report.comparison import layout_of
from phalanx.report.measures import RunMeasure
from phalanx.report.overlap import Overlap

MOST_EPOCHS = 12
"""Of a run by itself, that have a bar each."""
BAR_PIXELS = 30
AROUND_BARS_PIXELS = 20
KINDS = {"hidden": "var(--backward)", "exposed": "var(--communication)"}


def hidden_and_exposed(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    """Bars of the runs; of a run by itself those of its epochs."""
    known = [measure for measure in runs if measure.run and measure.overlap]
    rows = overlap_rows(known)
    if not rows:
        return None
    order = list(dict.fromkeys(str(row["bar"]) for row in rows))
    picked = highlight("kind", "kind_picked")
    base = alt.Chart(table()).encode(
        y=alt.Y("bar:N", title=None, sort=order, axis=alt.Axis(domain=False))
    )
    return figure(
        alt.layer(_bars(base, picked), _ceiling(base)),
        rows,
        name=name,
        title="Hidden and exposed communication",
        caption="Of a mean step, over ranks: what went on while backward was computed, and what "
        "was waited for. The tick: how much could be hidden at most, which the last bucket and "
        "the length of the backward pass limit.",
        source="step events: hidden_s, communication_s, last_bucket_s, backward_s",
        runs=[measure.name for measure in known],
        height_pixels=len(order) * BAR_PIXELS + AROUND_BARS_PIXELS,
    )


def overlap_rows(runs: Sequence[RunMeasure]) -> list[Row]:
    """One row a part of a bar, in milliseconds of a mean step."""
    rows: list[Row] = []
    for measure in runs:
        if measure.run is None:
            continue
        for bar, overlap in _bars_of(measure, alone=len(runs) == 1):
            start_s = 0.0
            for kind, took_s in (("hidden", overlap.hidden_s), ("exposed", overlap.exposed_s)):
                rows.append(
                    {
                        "bar": bar,
                        **layout_row(layout_of(measure.run)),
                        "run": measure.name,
                        "kind": kind,
                        "time_ms": 1e3 * took_s,
                        "start_ms": 1e3 * start_s,
                        "end_ms": 1e3 * (start_s + took_s),
                        "hideable_ms": 1e3 * overlap.hideable_s,
                        "last_bucket_ms": 1e3 * overlap.last_bucket_s,
                        "backward_ms": 1e3 * overlap.backward_s,
                    }
                )
                start_s += took_s
    return rows


def _bars_of(measure: RunMeasure, *, alone: bool) -> list[tuple[str, Overlap]]:
    if alone and 1 < len(measure.overlaps) <= MOST_EPOCHS:
        return [(f"epoch {epoch + 1}", overlap) for epoch, overlap in measure.overlaps.items()]
    return [(measure.name, measure.overlap)] if measure.overlap else []


def _bars(base: alt.Chart, picked: alt.Parameter) -> alt.Chart:
    bars: alt.Chart = base.mark_bar(
        stroke="var(--surface)", strokeWidth=1, height={"band": 0.74}
    ).encode(
        x=alt.X("start_ms:Q", title="communication of a step (ms)", axis=alt.Axis(grid=True)),
        x2="end_ms:Q",
        opacity=faded_unless(picked),
        fill=alt.Fill(
            "kind:N",
            title=None,
            scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())),
        ),
        tooltip=[
            alt.Tooltip("bar:N", title="of"),
            alt.Tooltip("kind:N"),
            alt.Tooltip("time_ms:Q", title="time (ms)", format=",.4f"),
            alt.Tooltip("hideable_ms:Q", title="could be hidden (ms)", format=",.4f"),
        ],
    )
    return bars.add_params(picked)


def _ceiling(base: alt.Chart) -> alt.Chart:
    ticks: alt.Chart = base.mark_tick(
        color="var(--ink)",
        thickness=2,
        height={"band": 0.9},
    ).encode(x="hideable_ms:Q")
    return ticks
