"""The network from scratch: time and loss by the number of workers."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Figure, Row, figure, table
from phalanx.report.charts.scaling import EPOCH_SOURCE
from phalanx.report.charts.theme import RANK_SHAPES, time_axis, time_scale, time_title
from phalanx.report.parallelism.chart_rows import hidden_of, scratch_rows
from phalanx.report.parallelism.study_data import ParallelCell, names_of

COLOURS = ("--rank-0", "--rank-1", "--rank-2", "--rank-3", "--rank-4", "--rank-5")
DASHES = ([1, 0], [6, 3], [2, 2], [10, 3, 2, 3])


def schemes_of(cells: Sequence[ParallelCell]) -> list[str]:
    """Return the schemes with several workers; a single process is their first point."""
    return [s for s in dict.fromkeys(cell.scheme for cell in cells) if s != "alone"]


def with_alone(cells: Sequence[ParallelCell], scheme: str) -> list[ParallelCell]:
    """The scheme's runs, and the one process that they all are compared with."""
    return [cell for cell in cells if cell.scheme in (scheme, "alone")]


def epoch_by_workers(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    times_s = [cell.cell.epoch_s for cell in cells]
    rows = scratch_rows(cells)
    if len(rows) < 2:
        return None
    y = alt.Y(
        "epoch_s:Q",
        title=time_title("time of an epoch", times_s),
        scale=time_scale(times_s, from_zero=True),
        axis=time_axis(times_s),
    )
    return figure(
        _lines(rows, y),
        rows,
        name=name,
        title="From scratch: time of an epoch by workers",
        caption="A line for each width of the hidden layers; one worker is one process without "
        "communication. Servers are not counted as workers.",
        source=EPOCH_SOURCE,
        runs=names_of(cells),
    )


def loss_by_workers(cells: Sequence[ParallelCell], name: str) -> Figure | None:
    rows = [row for row in scratch_rows(cells) if row["loss"] is not None]
    if len(rows) < 2:
        return None
    losses = [float(str(row["loss"])) for row in rows]
    # Level lines are to look level: rounding in the tenth digit must not fill the axis.
    around = max(max(losses) - min(losses), 0.05 * max(losses))
    middle = (max(losses) + min(losses)) / 2
    scale = alt.Scale(domain=[middle - around, middle + around], nice=False)
    y = alt.Y("loss:Q", title="validation loss", scale=scale, axis=alt.Axis(format=".3f"))
    return figure(
        _lines(rows, y),
        rows,
        name=name,
        title="From scratch: loss by workers",
        caption="After the last epoch. All schemes make the same update of the same global batch: "
        "lines are level but for rounding.",
        source="evaluation events: loss_sum, samples of all ranks",
        runs=names_of(cells),
    )


def _lines(rows: Sequence[Row], y: alt.Y) -> AnyChart:
    workers = sorted({int(str(row["workers"])) for row in rows})
    hidden = list(dict.fromkeys(str(row["hidden"]) for row in rows))
    colours = [f"var({COLOURS[i % len(COLOURS)]})" for i in range(len(hidden))]
    shapes = [RANK_SHAPES[i % len(RANK_SHAPES)] for i in range(len(hidden))]
    dashes = [DASHES[i % len(DASHES)] for i in range(len(hidden))]
    base = alt.Chart(table()).encode(
        x=alt.X(
            "workers:Q",
            title="workers (logarithmic)",
            scale=alt.Scale(type="log", base=2, padding=12, nice=False),
            axis=alt.Axis(values=workers, format="d"),
        ),
        y=y,
        color=alt.Color("hidden:N", title="hidden", scale=alt.Scale(domain=hidden, range=colours)),
    )
    lines = base.mark_line(strokeWidth=2).encode(
        strokeDash=alt.StrokeDash(
            "hidden:N", title="hidden", scale=alt.Scale(domain=hidden, range=dashes)
        )
    )
    marks = base.mark_point(size=70, filled=True, stroke="var(--surface)", strokeWidth=1).encode(
        shape=alt.Shape("hidden:N", title="hidden", scale=alt.Scale(domain=hidden, range=shapes)),
        tooltip=[
            alt.Tooltip("scheme:N"),
            alt.Tooltip("hidden:N"),
            alt.Tooltip("workers:Q"),
            alt.Tooltip("epoch_s:Q", title="epoch (s)", format=",.4~f"),
            alt.Tooltip("waiting:Q", format=".1%"),
            alt.Tooltip("loss:Q", format=".4f"),
            alt.Tooltip("accuracy:Q", format=".2%"),
        ],
    )
    drawn: AnyChart = alt.layer(lines, marks)
    return drawn


def fewest_workers(cells: Sequence[ParallelCell], hidden: str) -> ParallelCell | None:
    """Return the baseline of more workers: one process, or the smallest number measured."""
    found = [cell for cell in cells if hidden_of(cell) == hidden]
    return min(found, key=lambda cell: (cell.scheme != "alone", cell.ranks), default=None)
