"""Findings of a survival study. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from phalanx.report.comparison import counted
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import Agreement, Finding, TimeShare, headline_text
from phalanx.report.format import duration, joined, one_decimal, ratio
from phalanx.report.statistics import mean_interval, ratio_of_times
from phalanx.report.study_content import topics_of_runs
from phalanx.report.survival.study_data import (
    DisturbedRun,
    SurvivalCell,
    SurvivalStudyData,
)

FLOOR = 0.97
"""Share of the time that is to go into steps that count."""
FAULTS = {"kill": "death", "stop": "stop", "terminate": "preemption"}


def headline(data: SurvivalStudyData) -> str:
    """The one sentence that the page begins with."""
    bits = same_bits(data)
    if bits is None or not data.disturbed_cells:
        return "No run with faults has come to its end beside an undisturbed one yet"
    if bits.exceptions:
        return headline_text(bits)
    number = sum(len(cell.faults) for cell in data.disturbed_cells)
    shares = [
        f"{one_decimal(cell.share)} ({cell.label})"
        for cell in data.disturbed_cells
        if cell.share is not None
    ]
    if not shares:
        return headline_text(f"the same bits through {counted(number, 'fault')}")
    return headline_text(
        f"the same bits through {counted(number, 'fault')}; of the time {joined(shares)} went into "
        "steps that count"
    )


def findings(data: SurvivalStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    bits = same_bits(data)
    return told(
        make_topic(
            "The same bits",
            "SHA-256 of parameters, buffers and the optimizer's state at the end, of every rank, "
            "held to the undisturbed run of the same seed; and the loss of every step.",
            [("", bits), ("", same_losses(data))],
        ),
        make_topic(
            "Effective training time",
            "Share of the time from the begin of the first step to the end of the last. Steps "
            "between a fault and the recovery from it count with the median of the undisturbed "
            "ones before them; a step that is made again counts once. Fewer ranks make slower "
            "steps, which count, until a spare takes the place, where there is one. "
            f"The mean over the runs is held to {one_decimal(FLOOR)}.",
            [(cell.label, effective_time(cell)) for cell in data.disturbed_cells if cell.shares],
        ),
        make_topic(
            "What a fault costs",
            "Until the last survivor has noticed, and until the end of the first step after the "
            "recovery; means over the faults. Who computes notices at the end of it.",
            [(cell.label, costs(data, cell)) for cell in data.disturbed_cells if cell.faults],
        ),
        *topics_of_runs(data.measures),
    )


def same_bits(data: SurvivalStudyData) -> Agreement | None:
    """Return how many disturbed runs have ended with the bits of the undisturbed one."""
    pairs = _pairs(data, data.disturbed_cells)
    if not pairs:
        return None
    others = _differing(data, data.disturbed_cells)
    return Agreement(
        num=len(pairs) - len(others),
        n=len(pairs),
        noun="runs with faults" if len(pairs) > 1 else "run with faults",
        holds="ended with the SHA-256 of the undisturbed run of its seed",
        exceptions=tuple(run.run.name for run in others),
    )


def same_losses(data: SurvivalStudyData) -> Agreement | None:
    """Return in how many disturbed runs the loss of every step has the same bits."""
    known = [
        (run, losses, _losses(base))
        for run, base in _pairs(data, data.disturbed_cells)
        if (losses := _losses(run))
    ]
    if not known:
        return None
    others = [
        run
        for run, losses, expected in known
        if any(expected.get(step) != loss for step, loss in losses.items())
    ]
    steps = sum(len(losses) for _, losses, _ in known)
    return Agreement(
        num=len(known) - len(others),
        n=len(known),
        noun="runs with faults" if len(known) > 1 else "run with faults",
        holds=f"had the losses of the undisturbed run, to the last bit ({steps:,} steps)",
        exceptions=tuple(run.run.name for run in others),
    )


def effective_time(cell: SurvivalCell) -> Finding:
    """Return the share of the time that went into steps that count."""
    loads = [load for run in cell.runs if (load := run.load_average) is not None]
    facts = [counted(len(cell.runs), "run"), counted(len(cell.faults), "fault")]
    facts += [text] if (text := mean_time_between(cell)) else []
    facts += [f"load {min(loads):.1f} to {max(loads):.1f} when they began"] if loads else []
    return TimeShare(
        subject=f"steps of {duration(step_s(cell))}",
        estimate=fmean(cell.shares),
        interval=cell.share_interval,
        floor=FLOOR,
        facts=", ".join(facts),
    )


def mean_time_between(cell: SurvivalCell) -> str:
    """Return the mean time between the faults of a run, in words; empty with none."""
    gaps = [
        later - earlier
        for run in cell.runs
        for times in [[0.0, *(fault.at_s for fault in run.timeline.faults)]]
        for earlier, later in pairwise(times)
    ]
    return f"one every {fmean(gaps):.1f} s" if gaps else ""


def step_s(cell: SurvivalCell) -> float:
    """Return the median time of a step before the first fault."""
    times: list[float] = []
    for run in cell.runs:
        steps, first_s = run.timeline.steps, math.inf
        if run.timeline.faults:
            first_s = run.timeline.faults[0].at_s
        times += [step.took_s for step in steps if step.ended_s < first_s] or [steps[0].took_s]
    return median(times)


def costs(data: SurvivalStudyData, cell: SurvivalCell) -> list[Finding]:
    """Return times to notice and to continue, and what was lost."""
    texts: list[Finding] = []
    for name, words in (("notice_s", "noticed after"), ("continue_s", "the next step ended after")):
        times = cell.times(name)
        if times:
            texts.append(f"{words} {_mean(times)}, at most {duration(max(times))}")
    replaced = [seconds for run in cell.runs for seconds in run.timeline.replaced_s]
    if replaced:
        number = counted(len(replaced), "time")
        texts.append(f"spares took places {number}, {_mean(replaced)} after the notice")
    slower = _slower(data, cell)
    texts += [slower] if slower else []
    again = sum(run.timeline.steps_again for run in cell.runs)
    starts = sum(run.timeline.num_starts - 1 for run in cell.runs)
    is_known = len(_pairs(data, [cell])) == len(cell.runs) and not _differing(data, [cell])
    lost = ", no sample lost" if is_known else ""
    texts.append(f"{counted(again, 'step')} made again, {counted(starts, 'restart')}{lost}")
    return texts


def _slower(data: SurvivalStudyData, cell: SurvivalCell) -> str:
    """Return how much longer the runs took than undisturbed ones, in words; empty where that cannot
    be told."""
    pairs = _pairs(data, [cell])
    interval = ratio_of_times(
        tuple((run.timeline.wall_s,) for run, _ in pairs),
        tuple((base.timeline.wall_s,) for _, base in pairs),
    )
    return "" if interval is None else f"the run takes {ratio(interval)} its undisturbed time"


def _mean(times: Sequence[float]) -> str:
    interval = mean_interval(times)
    if interval is None:
        return duration(fmean(times))
    low, high = max(0.0, interval.low), interval.high
    return f"{duration(interval.estimate)} ({duration(low)} to {duration(high)})"


def _differing(data: SurvivalStudyData, cells: Sequence[SurvivalCell]) -> list[DisturbedRun]:
    """Return the runs whose bits are not those of the undisturbed one."""
    pairs = _pairs(data, cells)
    return [run for run, base in pairs if run.sha256 != base.sha256 or len(run.sha256) != 1]


def _pairs(
    data: SurvivalStudyData, cells: Sequence[SurvivalCell]
) -> list[tuple[DisturbedRun, DisturbedRun]]:
    """Return the runs of `cells`, each with the undisturbed one of its seed."""
    return [
        (run, base)
        for cell in cells
        for run in cell.runs
        if (base := data.reference(run.seed)) is not None
    ]


def _losses(run: DisturbedRun) -> dict[int, float]:
    return {step.step: step.loss for step in run.timeline.steps if step.loss is not None}
