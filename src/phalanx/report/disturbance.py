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


def with_disturbance(headline: str, runs: Sequence[RunMeasure]) -> str:
    """The headline, and that it is none of a quiet machine, where it is not."""
    lost = _lost(runs)
    if lost is None:
        return headline
    return f"{headline} \N{EN DASH} on a disturbed machine: something else took {lost}"


def disturbance_topic(runs: Sequence[RunMeasure]) -> Topic:
    completed = [run for run in runs if run.status == "completed"]
    sentences = []
    if lost := _lost(runs):
        text = f"Something else took {lost}: these are not the times of a quiet machine."
        sentences.append(("", text))
    uneven = [(spread(t), run, t) for run in completed if is_spread(t := run.timed_s)]
    for factor, run, times in sorted(uneven, key=lambda item: -item[0])[:RUNS_SHOWN]:
        text = f"epochs of {', '.join(map(fixed, times))} s, {factor:.1f} times apart."
        sentences.append((run.name, text))
    if len(uneven) > RUNS_SHOWN:
        text = f"{len(uneven) - RUNS_SHOWN} more runs have epochs as far apart."
        sentences.append(("", text))
    return make_topic(
        "Disturbance",
        "Before and after each run a thread on every core measured how much of it it had: "
        f"under {percent(QUIET_SHARE, 0)} something else was at work. Runs are named whose slowest "
        f"timed epoch takes more than {SPREAD_FACTOR:g} times their fastest.",
        sentences,
    )


def _lost(runs: Sequence[RunMeasure]) -> str | None:
    """`38 % of the cores around 12 of 24 runs`."""
    known = [run for run in runs if core_share(run) is not None]
    found = disturbed_runs(runs)
    if not found:
        return None
    taken = 1 - fmean(share for run in found if (share := core_share(run)) is not None)
    return f"{percent(taken, 0)} of the cores around {len(found)} of {len(known)} runs"
