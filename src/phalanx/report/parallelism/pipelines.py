"""A pipeline's step drawn as it happened: which stage did what when."""

from __future__ import annotations

import altair as alt

from phalanx.report.charts.figure import Figure, figure, table
from phalanx.report.format import percent
from phalanx.report.parallelism.chart_rows import action_rows
from phalanx.report.parallelism.rank_details import pipeline_step
from phalanx.report.parallelism.study_data import ParallelCell, names_of

KINDS = {
    "forward": "--forward",
    "backward": "--backward",
    "input gradient": "--backward",
    "weight gradient": "--optimizer",
}
INKS = {
    "forward": "--on-forward",
    "backward": "--on-backward",
    "input gradient": "--on-backward",
    "weight gradient": "--on-optimizer",
}
ROW_PIXELS = 30
AROUND_PIXELS = 40
NUMBER_FROM_SHARE = 0.022  # of the step; shorter actions get no number


def bubble_of(cell: ParallelCell) -> tuple[float | None, float | None]:
    """(measured, by formula): the idle share of the drawn step."""
    step = pipeline_step(cell.detail)
    formulas = [rank.expected.bubble for rank in cell.detail.ranks]
    known = [formula for formula in formulas if formula is not None]
    return step.bubble if step else None, known[0] if known else None


def micro_batches_of(cell: ParallelCell) -> int | None:
    step = pipeline_step(cell.detail)
    if step is None:
        return None
    return len({action.micro_batch for actions in step.actions.values() for action in actions})


def pipeline(cell: ParallelCell, name: str) -> Figure | None:
    """Draw one recorded step, a row for each stage."""
    step = pipeline_step(cell.detail)
    if step is None:
        return None
    rows = action_rows(step)
    present = {row["kind"] for row in rows}
    kinds = [kind for kind in KINDS if kind in present]
    order = [str(row["row"]) for row in sorted(rows, key=lambda row: int(str(row["stage"])))]
    order = list(dict.fromkeys(order))
    base = alt.Chart(table()).encode(
        y=alt.Y("row:N", title=None, sort=order, axis=alt.Axis(domain=False))
    )
    bars = base.mark_bar(stroke="var(--surface)", strokeWidth=0.6, height={"band": 0.84}).encode(
        x=alt.X("begin_ms:Q", title="time of a step (ms)", axis=alt.Axis(grid=True)),
        x2="end_ms:Q",
        fill=alt.Fill(
            "kind:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=[f"var({KINDS[kind]})" for kind in kinds]),
            legend=alt.Legend(columns=3),
        ),
        tooltip=[
            alt.Tooltip("row:N", title="stage"),
            alt.Tooltip("kind:N"),
            alt.Tooltip("micro_batch:Q", title="micro-batch"),
            alt.Tooltip("begin_ms:Q", title="from (ms)", format=",.3f"),
            alt.Tooltip("end_ms:Q", title="to (ms)", format=",.3f"),
        ],
    )
    numbers = (
        base.transform_filter(f"datum.share >= {NUMBER_FROM_SHARE}")
        .transform_calculate(middle_ms="(datum.begin_ms + datum.end_ms) / 2")
        .mark_text(fontSize=9)
        .encode(
            x="middle_ms:Q",
            text="micro_batch:Q",
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=[f"var({INKS[kind]})" for kind in kinds]),
            ),
        )
    )
    return figure(
        alt.layer(bars, numbers),
        rows,
        name=name,
        title="Pipelines, as they ran",
        caption="The shortest of the recorded steps; numbers are micro-batches. White is waiting: "
        "for a neighbour, a message or, where ranks share cores, a core. The shares above each "
        "chart are the idle part of the step, measured and by the formula of the schedule.",
        source="action events: stage, micro_batch, kind, began_s, ended_s",
        runs=names_of([cell]),
        height_pixels=len(order) * ROW_PIXELS + AROUND_PIXELS,
    )


def bubble_words(cell: ParallelCell) -> str:
    """Format the title of a panel: bubble 31 % (formula 16 %)."""
    measured, formula = bubble_of(cell)
    parts = [] if measured is None else [f"bubble {percent(measured, 0)}"]
    parts += [] if formula is None else [f"formula {percent(formula, 0)}"]
    return ", ".join(parts)
