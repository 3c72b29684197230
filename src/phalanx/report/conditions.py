"""Conditions of a study: other load, differing environments, what is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from phalanx.report.content import FACTS, facts_of
from phalanx.report.format import counted, fixed, joined, percent
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import is_spread, spread
from phalanx.report.trace.write import TRACE_NAME
from phalanx.report.values import StudyRows

QUIET_SHARE = 0.9
"""Part of the time around a run: a thread on each core that has less of it was not alone."""
SHOWN = 5
CHANGED = "-changed"
"""End of the commit of a tree that was changed since."""
NOT_COMPARED = ("memory", "operating system")
Condition = tuple[str, str]
"""Subject (a run, or nothing), and a sentence."""


def conditions(data: StudyRows) -> list[Condition]:
    """Return the conditions of a study."""
    found: list[Condition] = list(data.notes)
    for of in (not_completed, not_alike, uneven, unseen, traced):
        found += of(data)
    return found


def core_share(run: RunMeasure) -> float | None:
    """Return the part of the cores that was free before or after a run, whichever is less; None
    where nobody looked."""
    probes = run.run.probes if run.run else []
    return min((probe.core_share for probe in probes), default=None)


def disturbance(runs: Sequence[RunMeasure]) -> str:
    """Return how much other processes took of the machine; empty for a quiet one."""
    known = [share for run in runs if (share := core_share(run)) is not None]
    found = [share for share in known if share < QUIET_SHARE]
    if not found:
        return ""
    return (
        f"Other processes used {percent(1 - fmean(found), 0)} of the CPU during {len(found)} of "
        f"{len(known)} runs: these are not the times of a quiet machine."
    )


def uneven(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs whose epochs are far apart, the worst first."""
    completed = [run for run in data.measures if run.status == "completed"]
    found = [(spread(t), run.name, t) for run in completed if is_spread(t := run.timed_s)]
    for factor, name, times in sorted(found, key=lambda item: -item[0])[:SHOWN]:
        times_s = ", ".join(map(fixed, times))
        yield name, f"Epochs of {times_s} s, {factor:.1f}\N{MULTIPLICATION SIGN} apart."
    if len(found) > SHOWN:
        yield "", f"{len(found) - SHOWN} more runs have epochs as far apart."


def not_alike(data: StudyRows) -> Iterator[Condition]:
    """Yield what differs between the environments of runs that are compared."""
    known = [r.run.environment for r in data.measures if r.run and r.status == "completed"]
    facts = [facts_of(environment) for environment in known]
    for name in FACTS.values():
        values = [each[name] for each in facts if name in each]
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        if len(counts) > 1 and name not in NOT_COMPARED:
            parts = [f"{value} in {count} of {len(values)} runs" for value, count in counts.items()]
            yield "", f"Not made alike: {name}: {joined(parts)}."
    if any((environment.commit or "").endswith(CHANGED) for environment in known):
        yield "", "Made by a source tree that was changed since its commit."


LEFT_OUT = (
    "Times, losses and accuracies are those that rank 0 summed up; what needs the records of all "
    "ranks is left out."
)


def unseen(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs of which some ranks left their records elsewhere, or died."""
    for run in data.measures:
        if run.unseen:
            of = f"There are no records of {_ranks(run.unseen)}: on several nodes that share no"
            yield run.name, f"{of} folder each node keeps its own. {LEFT_OUT}"
        if run.run is not None and (lost := run.run.outcome.lost):
            yield run.name, f"{_ranks(lost, ' died')}, and the others went on. {LEFT_OUT}"


def _ranks(ranks: Sequence[int], did: str = "") -> str:
    return f"{counted(len(ranks), 'rank')}{did} ({joined([str(rank) for rank in ranks])})"


def traced(data: StudyRows) -> Iterator[Condition]:
    """Point to the traces of what every rank did when."""
    if names := [run.name for run in data.measures if run.is_traced]:
        of = f"What every rank did when is in {TRACE_NAME} of {joined(names)}"
        yield "", f"{of}: open it in https://ui.perfetto.dev or chrome://tracing."


def not_completed(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs that are in no comparison, and their errors."""
    left = [row for row in data.runs if row["status"] != "completed"]
    if not left:
        return
    kinds = [row["status"] for row in left]
    counts = joined([f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)])
    names = joined([row["run"] for row in left])
    total = counted(len(data.runs), "run")
    yield "", f"Not completed: {len(left)} of {total}: {counts} ({names})."
    errors = [(row["run"], str(row["error"])) for row in left if row["error"]]
    yield from errors[:SHOWN]
