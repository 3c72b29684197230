"""Times and losses of the schemes as charts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.scaling import EPOCH_SOURCE
from phalanx.report.charts.theme import (
    DASHES,
    RANK_SHAPES,
    faded_unless,
    highlight,
    is_wide,
    strategy_scales,
    time_axis,
    time_scale,
    time_title,
)
from phalanx.report.parallelism.chart_rows import (
    loss_rows,
    time_rows,
)
from phalanx.report.parallelism.study_data import ModelData, ParallelCell, names_of

BAR_PIXELS = 24
AROUND_BARS_PIXELS = 30
TALL_PIXELS = 300
GROUP_COLOURS = {
    "sequential": "--sequential",
    "summed gradients": "--mpi",
    "servers, local steps": "--rank-3",
    "sharded state": "--rank-2",
    "split layers, pipelines": "--gloo",
}


def overview(model: ModelData, name: str) -> Figure | None:
    """Every scheme, the fastest first; a mark for each number of ranks."""
    rows = time_rows(model.cells)
    if len(rows) < 2:
        return None
    times_s = [cell.cell.epoch_s for cell in model.cells]
    best: dict[str, float] = {}
    for cell in model.cells:
        best[cell.scheme] = min(best.get(cell.scheme, float("inf")), cell.cell.epoch_s)
    order = sorted(best, key=lambda scheme: best[scheme])
    x = alt.X(
        "epoch_s:Q",
        title=time_title("time of an epoch", times_s),
        scale=time_scale(times_s, from_zero=True),
        axis=_vertical(time_axis(times_s)),
    )
    layers: list[AnyChart] = [_alone(x)] if model.sequential else []
    return figure(
        alt.layer(*layers, _dots(rows, order, x)),
        rows,
        name=name,
        title="Time of an epoch, every scheme",
        caption="The fastest first; shapes tell the number of ranks. The dashed line is the "
        "sequential program: what is to its left is faster.",
        source=EPOCH_SOURCE,
        runs=names_of(model.cells),
        height_pixels=len(order) * BAR_PIXELS + AROUND_BARS_PIXELS,
    )


def _dots(rows: Sequence[Row], order: Sequence[str], x: alt.X) -> alt.Chart:
    groups = [group for group in GROUP_COLOURS if group in {row["group"] for row in rows}]
    ranks = sorted({int(str(row["ranks"])) for row in rows})
    shapes = [RANK_SHAPES[i % len(RANK_SHAPES)] for i in range(len(ranks))]
    picked = highlight("group", "group_picked")
    dots: alt.Chart = (
        alt.Chart(table())
        .mark_point(size=100, filled=True, stroke="var(--surface)", strokeWidth=1)
        .encode(
            x=x,
            y=alt.Y(
                "strategy:N",
                title=None,
                sort=list(order),
                axis=alt.Axis(grid=True, domain=False, labelLimit=250),
            ),
            color=alt.Color(
                "group:N",
                title=None,
                scale=alt.Scale(
                    domain=groups, range=[f"var({GROUP_COLOURS[group]})" for group in groups]
                ),
                legend=alt.Legend(columns=2),
            ),
            shape=alt.Shape("ranks:N", title="ranks", scale=alt.Scale(domain=ranks, range=shapes)),
            opacity=faded_unless(picked),
            tooltip=_tooltip(),
        )
        .add_params(picked)
    )
    return dots


def _alone(x: alt.X) -> alt.Chart:
    rule: alt.Chart = (
        alt.Chart(table())
        .transform_filter("datum.strategy == 'sequential'")
        .mark_rule(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
        .encode(x=x)
    )
    return rule


def speed_up(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    """A line a scheme, both axes logarithmic: schemes far below the ideal stay apart."""
    rows = [row for row in time_rows(cells) if row["speed_up"] is not None]
    if len(rows) < 2:
        return None
    ranks = sorted({int(str(row["ranks"])) for row in rows})
    x = alt.X(
        "ranks:Q",
        title="ranks (logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=16, nice=False),
        axis=alt.Axis(values=ranks, format="d"),
    )
    y = alt.Y(
        "speed_up:Q",
        title="speed-up, T(1) \N{DIVISION SIGN} T(p) (logarithmic)",
        scale=alt.Scale(type="log", base=2, padding=8, nice=False),
        axis=alt.Axis(values=[2.0**power for power in range(-8, 9)], format="~r"),
    )
    picked = highlight("strategy", "strategy_picked")
    scales = strategy_scales(rows)
    base = alt.Chart(table()).encode(
        x=x, y=y, color=scales["color"], opacity=faded_unless(picked), tooltip=_tooltip()
    )
    marks = base.mark_point(size=80, filled=True, stroke="var(--surface)", strokeWidth=1)
    marks = marks.encode(shape=scales["shape"]).add_params(picked)
    ideal = (
        alt.Chart(table())
        .mark_line(color="var(--ideal)", strokeDash=[4, 4], strokeWidth=1.5)
        .encode(x=x, y=alt.Y("ranks:Q"))
    )
    return figure(
        alt.layer(ideal, base.mark_line(strokeWidth=2), marks),
        rows,
        name=name,
        title="Speed-up",
        caption="How many times as fast as the sequential program; the dashed line is the ideal, "
        "as many times as there are ranks.",
        source=EPOCH_SOURCE,
        runs=names_of(cells),
        height_pixels=TALL_PIXELS,
    )


def loss_by_step(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    return _loss(cells, name, x="step", title="step", what="Loss against step", log=False)


def loss_by_time(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    return _loss(
        cells,
        name,
        x="trained_s",
        title="training time (s)",
        what="Loss against time",
        log=True,
    )


def _loss(
    cells: Sequence[ParallelCell], name: str, *, x: str, title: str, what: str, log: bool
) -> Figure | None:
    drawn = [cell for cell in cells if cell.detail.num_steps]
    rows = loss_rows(drawn)
    if not rows:
        return None
    values = [float(str(row["loss"])) for row in rows]
    wide = is_wide(values)
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    times = [float(str(row[x])) for row in rows]
    along = alt.Scale(type="log", nice=False) if log and is_wide(times) else alt.Scale(nice=False)
    picked = highlight("strategy", "strategy_picked")
    colour = strategy_scales(rows)["color"]
    names = colour["scale"]["domain"]
    dashes = alt.Scale(domain=names, range=[DASHES[i % len(DASHES)] for i in range(len(names))])
    lines = (
        alt.Chart(table())
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                f"{x}:Q",
                title=f"{title[:-1]}, logarithmic)" if along["type"] == "log" else title,
                scale=along,
                axis=time_axis(times) if log else alt.Axis(tickMinStep=1, format="d"),
            ),
            y=alt.Y(
                "loss:Q",
                title="training loss (logarithmic)" if wide else "training loss",
                scale=scale,
            ),
            color=colour,
            strokeDash=alt.StrokeDash(
                "strategy:N", title=None, scale=dashes, legend=colour["legend"]
            ),
            opacity=faded_unless(picked),
            tooltip=[
                alt.Tooltip("configuration:N"),
                alt.Tooltip("step:Q"),
                alt.Tooltip("trained_s:Q", title="time (s)", format=",.4~f"),
                alt.Tooltip("loss:Q", format=".5f"),
            ],
        )
        .add_params(picked)
    )
    return figure(
        lines,
        rows,
        name=name,
        title=what,
        caption="Over all ranks, before the update, neighbouring steps averaged; each scheme on "
        "its largest number of ranks. Lines of schemes that make the same update lie on each "
        "other" + (", one slower than the other." if log else "."),
        source="step events of all ranks: loss_sum, samples, and the five times",
        runs=names_of(drawn),
    )


def _vertical(axis: alt.Axis) -> alt.Axis:
    axis.grid = True
    return axis


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("configuration:N"),
        alt.Tooltip("epoch_s:Q", title="epoch (s)", format=",.4~f"),
        alt.Tooltip("step_ms:Q", title="step (ms)", format=",.4~f"),
        alt.Tooltip("speed_up:Q", title="speed-up", format=".3f"),
        alt.Tooltip("waiting:Q", format=".1%"),
        alt.Tooltip("loss:Q", format=".4f"),
        alt.Tooltip("accuracy:Q", format=".2%"),
    ]
