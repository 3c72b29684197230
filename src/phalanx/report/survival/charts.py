"""Loss against time with every fault marked, time of the steps, and effective time as charts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from phalanx.report.charts.figure import AnyChart, Chart, Row, table
from phalanx.report.charts.shapes import bars_height, bars_with_words
from phalanx.report.charts.theme import (
    Series,
    faded_unless,
    highlight,
    known_series,
    tooltips,
)
from phalanx.report.format import duration, one_decimal
from phalanx.report.survival.study_data import LABELS, DisturbedRun, SurvivalStudyData
from phalanx.report.survival.timeline import FaultMeasure, TimedStep

LOOKS = {
    LABELS["undisturbed"]: ("--sequential", "circle"),
    LABELS["in-place"]: ("--mpi", "square"),
    LABELS["stops"]: ("--shared", "diamond"),
    LABELS["restarts"]: ("--gloo", "triangle-up"),
    LABELS["preemption"]: ("--path-mpi", "cross"),
}
"""Colour and shape of each way, the same in all charts."""
SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP", "terminate": "SIGTERM"}
MOST_POINTS = 400
"""Of one curve: a pixel or two each."""
STEP, FAULT = "step", "fault"
LOG = alt.Scale(type="log", nice=False, padding=8)


def curve_rows(runs: Sequence[DisturbedRun]) -> list[Row]:
    """Rows of the steps of runs, thinned out, and of their faults on the curves."""
    rows: list[Row] = []
    for run in runs:
        known = [step for step in run.timeline.steps if step.loss is not None]
        stride = -(-len(known) // MOST_POINTS) or 1
        chosen = {*range(0, len(known), stride), len(known) - 1}
        rows += [_row(run, known[number]) for number in sorted(chosen) if known]
        for fault in run.timeline.faults:
            before = [step for step in known if step.ended_s <= fault.at_s]
            if before:
                rows.append(_row(run, before[-1], fault))
    return rows


def _row(run: DisturbedRun, step: TimedStep, fault: FaultMeasure | None = None) -> Row:
    words = ""
    if fault is not None:
        words = f"{SIGNALS[fault.kind]} of rank {fault.rank}"
    continue_s = fault.continue_s if fault else None
    notice_s = fault.notice_s if fault else None
    return {
        "strategy": run.label,
        "run": run.run.name,
        "kind": STEP if fault is None else FAULT,
        "at_s": step.ended_s if fault is None else fault.at_s,
        "updates": step.step + 1,
        "loss": step.loss,
        "step_ms": 1e3 * (step.ended_s - step.began_s),
        "words": words,
        "noticed": "" if notice_s is None else f"after {duration(notice_s)}",
        "continued": "" if continue_s is None else f"after {duration(continue_s)}",
    }


def _series(rows: Sequence[Row]) -> Series:
    return known_series("strategy", rows, LOOKS)


def _curves(rows: Sequence[Row], x: alt.X, y: alt.Y) -> AnyChart:
    """A line a run, and a cross on it for each fault."""
    series, picked = _series(rows), highlight("strategy")
    base = alt.Chart(table()).encode(x=x, y=y, opacity=faded_unless(picked))
    steps = base.transform_filter(f"datum.kind === '{STEP}'")
    line = steps.mark_line(strokeWidth=1.6).encode(color=series.color, detail="run:N")
    if not any(row["kind"] == FAULT for row in rows):
        return alt.layer(line.add_params(picked))
    faults = base.transform_filter(f"datum.kind === '{FAULT}'")
    cross = faults.mark_point(
        shape="cross",
        angle=45,
        size=190,
        filled=True,
        color="var(--ink)",
        stroke="var(--surface)",
        strokeWidth=1.2,
    ).encode(
        tooltip=tooltips(
            *("words|fault", "run", "at_s|time (s)|,.2f", "updates|updates before it|,d"),
            *("noticed", "continued|next step ended", "loss||.5f"),
        ),
    )
    return alt.layer(line.add_params(picked), cross)


def _time() -> alt.X:
    return alt.X("at_s:Q", title="wall-clock time (s)", scale=alt.Scale(nice=False))


def _loss() -> alt.Y:
    return alt.Y("loss:Q", title="training loss (logarithmic)", scale=LOG)


def _names(runs: Sequence[DisturbedRun]) -> list[str]:
    return [run.run.name for run in runs]


SOURCE = "step, metrics, injected and recovered events of all ranks"
LOSS_BY_TIME = Chart(
    title="Loss against wall-clock time",
    caption="Every cross is a fault. Runs of one seed make the same updates: their curves are the "
    "same to the last bit, stretched in time.",
    source=SOURCE,
    rows=curve_rows,
    runs=_names,
    draw=lambda rows: _curves(rows, _time(), _loss()),
)
LOSS_BY_UPDATES = Chart(
    title="Loss against updates",
    caption="The same curves over the updates: they lie on each other.",
    source=SOURCE,
    rows=curve_rows,
    runs=_names,
    draw=lambda rows: _curves(
        rows, alt.X("updates:Q", title="updates", scale=alt.Scale(nice=False)), _loss()
    ),
)
STEP_TIMES = Chart(
    title="Time of a step",
    caption="From the end of a step to that of the next. When ranks have died the others compute "
    "their part.",
    source=SOURCE,
    rows=curve_rows,
    runs=_names,
    draw=lambda rows: _curves(
        rows,
        _time(),
        alt.Y("step_ms:Q", title="step (ms, logarithmic)", scale=LOG),
    ),
)


def share_rows(data: SurvivalStudyData) -> list[Row]:
    """A row a way with faults."""
    rows: list[Row] = []
    for cell in data.disturbed_cells:
        if cell.share is not None:
            interval = cell.share_interval
            span = (
                f" ({one_decimal(interval.low)} to {one_decimal(interval.high)})"
                if interval
                else ""
            )
            rows.append(
                {
                    "way": cell.label,
                    "share": 100 * cell.share,
                    "words": f"{one_decimal(cell.share)}{span}",
                }
            )
    return rows


EFFECTIVE_TIME = Chart[SurvivalStudyData](
    title="Effective training time",
    caption="Share of the wall-clock time that went into steps that count; mean over the seeds, "
    "with its interval.",
    source=SOURCE,
    rows=share_rows,
    runs=lambda data: [run.run.name for cell in data.cells for run in cell.runs],
    draw=lambda rows: bars_with_words(
        rows,
        "share",
        "effective time (%)",
        by="way",
        tooltip=tooltips("way", "words|effective time"),
        colour="--mpi",
        values=[0, 25, 50, 75, 100],
    ),
    height=lambda rows: bars_height(rows, "way"),
)
