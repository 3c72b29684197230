"""Detection of other load on the machine while a study was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from phalanx.report.content import Topic, make_topic
from phalanx.report.format import fixed, percent
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import SPREAD_FACTOR, is_spread, spread

QUIET_SHARE = 0.9
"""Of the time around a run: a thread on each core that has less of it was not alone."""

RUNS_SHOWN = 5


def disturbed_runs(runs: Sequence[RunMeasure]) -> list[RunMeasure]:
    """Return the runs during which other processes took more of the cores than on a quiet
    machine."""
    return [run for run in runs if (share := core_share(run)) is not None and share < QUIET_SHARE]


def core_share(run: RunMeasure) -> float | None:
    """The part of the cores that was free, before or after the run, whichever is less; None where
    nobody looked."""
    probes = run.run.probes if run.run else []
    return min((probe.core_share for probe in probes), default=None)


def disturbance_topic(runs: Sequence[RunMeasure]) -> Topic:
    completed = [run for run in runs if run.status == "completed"]
    sentences = []
    if note := disturbance_note(runs):
        sentences.append(("", f"{note} These are not the times of a quiet machine."))
    uneven = [(spread(t), run, t) for run in completed if is_spread(t := run.timed_s)]
    for factor, run, times in sorted(uneven, key=lambda item: -item[0])[:RUNS_SHOWN]:
        times_s = ", ".join(map(fixed, times))
        text = f"epochs of {times_s} s, {factor:.1f}\N{MULTIPLICATION SIGN} apart."
        sentences.append((run.name, text))
    if len(uneven) > RUNS_SHOWN:
        text = f"{len(uneven) - RUNS_SHOWN} more runs have epochs as far apart."
        sentences.append(("", text))
    return make_topic(
        "Disturbance",
        "Before and after each run we measure how much of every core is free; below "
        f"{percent(QUIET_SHARE, 0)}, other processes were running. Runs are named if their slowest "
        f"timed epoch takes more than {SPREAD_FACTOR:g} times as long as their fastest.",
        sentences,
    )


def disturbance_note(runs: Sequence[RunMeasure]) -> str:
    """Return `Other processes used 38 % of the CPU during 12 of 24 runs.`, empty for a quiet
    machine."""
    known = [run for run in runs if core_share(run) is not None]
    found = disturbed_runs(runs)
    if not found:
        return ""
    taken = 1 - fmean(share for run in found if (share := core_share(run)) is not None)
    where = f"{len(found)} of {len(known)} runs"
    return f"Other processes used {percent(taken, 0)} of the CPU during {where}."
