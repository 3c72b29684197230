"""Training loss and accuracy of each rank over its local shard of the data."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.chart_rows import rank_rows
from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.theme import (
    NUM_RANK_COLOURS,
    RANK_SHAPES,
    faded_unless,
    highlight,
)
from phalanx.report.measures import RunMeasure

SOURCE = "epoch events of each rank: loss_sum, correct, samples"
CAPTION = "Each rank over its own part of the training data. Choose a run below the chart."


def rank_loss(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    y = alt.Y("train_loss:Q", title="training loss", scale=alt.Scale(zero=False))
    return _rank_figure(runs, name, "Training loss, rank by rank", y)


def rank_accuracy(runs: Sequence[RunMeasure], name: str) -> Figure | None:
    y = alt.Y(
        "train_accuracy:Q",
        title="training accuracy",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(format=".1%", tickMinStep=0.001),
    )
    return _rank_figure(runs, name, "Training accuracy, rank by rank", y)


def _rank_figure(runs: Sequence[RunMeasure], name: str, title: str, y: alt.Y) -> Figure | None:
    spread = [measure for measure in runs if len(measure.ranks) > 1 and measure.trained]
    rows = rank_rows(spread)
    if not rows:
        return None
    return figure(
        _lines(rows, y, shown_first=_widest(spread)),
        rows,
        name=name,
        title=title,
        caption=CAPTION,
        source=SOURCE,
        runs=[measure.name for measure in spread],
    )


def _widest(runs: Sequence[RunMeasure]) -> str:
    """The run on the most ranks, of several the first."""
    return max(runs, key=lambda measure: len(measure.ranks)).name


def _lines(rows: Sequence[Row], y: alt.Y, *, shown_first: str) -> AnyChart:
    names = list(dict.fromkeys(str(row["run"]) for row in rows))
    shown = alt.param(
        name="run_shown", value=shown_first, bind=alt.binding_select(options=names, name="Run ")
    )
    picked = highlight("rank", "rank_picked")
    epochs = sorted({int(str(row["epoch"])) for row in rows})
    axis = alt.Axis(values=epochs, format="d") if len(epochs) <= 12 else alt.Axis(format="d")
    base = (
        alt.Chart(table())
        .transform_filter("datum.run === run_shown")
        .encode(
            x=alt.X("epoch:Q", title="epoch", axis=axis, scale=alt.Scale(zero=False, padding=12)),
            y=y,
            opacity=faded_unless(picked),
        )
    )
    colour, shape = _rank_scales(rows)
    base = base.encode(color=colour)
    marks = base.mark_point(size=65, filled=True).encode(shape=shape, tooltip=_tooltip())
    return alt.layer(base.mark_line(strokeWidth=1.8), marks.add_params(shown, picked))


def _rank_scales(rows: Sequence[Row]) -> tuple[alt.Color, alt.Shape]:
    ranks = sorted({int(str(row["rank"])) for row in rows})
    colours = [f"var(--rank-{rank % NUM_RANK_COLOURS})" for rank in ranks]
    shapes = [RANK_SHAPES[rank % len(RANK_SHAPES)] for rank in ranks]
    return (
        alt.Color("rank:N", scale=alt.Scale(domain=ranks, range=colours)),
        alt.Shape("rank:N", scale=alt.Scale(domain=ranks, range=shapes)),
    )


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("run:N"),
        alt.Tooltip("rank:N"),
        alt.Tooltip("epoch:Q"),
        alt.Tooltip("samples:Q", format=",d"),
        alt.Tooltip("train_loss:Q", title="training loss", format=".5f"),
        alt.Tooltip("train_accuracy:Q", title="training accuracy", format=".2%"),
        alt.Tooltip("train_s:Q", title="epoch (s)", format=",.4~f"),
    ]
