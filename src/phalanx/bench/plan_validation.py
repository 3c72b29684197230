"""Validate plans on this machine: calibration and the runs that are predicted take turns.

No step of ranks that communicate is in a calibration. The floor beside each error is how well one
half of the rounds predicts the other half of the same cell: no prediction can do better.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

from phalanx.bench.profile import (
    COSTS,
    FIRST_STEPS,
    TrainingOfOptions,
    measure_overhead,
    measure_sums,
    read_costs,
    run_trainings,
)
from phalanx.comm.link import Link
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.predict import Target, plan_ranks
from phalanx.plan.profile import ProgramProfile, profile_of_runs, write_profile
from phalanx.train.config import TrainConfig

RANKS = 2
LINK = "1Gbit/s,1ms"
RUN_S = 1.5
MOST_STEPS = 1000


class ValidatedCase(NamedTuple):
    """A way to run a model on `RANKS` ranks."""

    name: str
    link: str | None = None
    overlap: bool | None = None

    @property
    def options(self) -> dict[str, object]:
        overlap = None if self.overlap is None else "on" if self.overlap else "off"
        given = {"link": self.link, "overlap": overlap}
        return {name: value for name, value in given.items() if value is not None}


CASES = (
    ValidatedCase("shared memory"),
    ValidatedCase("link, no overlap", LINK, False),
    ValidatedCase("link, overlap", LINK, True),
)


class CaseResult(NamedTuple):
    """A model and a case: seconds of a step, predicted and measured."""

    model: str
    case: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    floor: float
    """Difference of the medians of odd and even rounds, as a share."""
    perfect_s: float
    """The rule that knows nothing: half the time of the whole batch alone."""

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def validate_here(
    config: TrainConfig, rounds: int, top: Path, console: Console
) -> list[CaseResult]:
    """Return the errors of all cases of a training. config: complete, of one process. top: a new
    folder, for records.

    Raises: RunFailedError when a run fails.
    """
    top.mkdir(parents=True)
    whole = config.global_batch_size()
    alone = {"strategy": "sequential", "ranks": 1}
    pilot = run_trainings(config, [top / "pilot"], FIRST_STEPS, **alone, batch_size=whole)
    step_s = profile_of_runs({1: pilot}).times[0].median_s
    steps = max(6 * FIRST_STEPS, min(MOST_STEPS, int(RUN_S / step_s)))
    calibrated: dict[int, list[Path]] = {1: [], RANKS: []}
    measured: dict[str, list[float]] = {case.name: [] for case in CASES}
    jobs = ["alone", "at once", *(case.name for case in CASES)]
    for number in range(rounds):
        console.print(f"{config.model}: round {number + 1} of {rounds}", markup=False)
        shift = number % len(jobs)
        for job in (*jobs[shift:], *jobs[:shift]):
            place = top / f"round-{number}-{jobs.index(job)}"
            if job == "alone":
                calibrated[1] += run_trainings(config, [place], steps, **alone, batch_size=whole)
            elif job == "at once":
                places = [place.with_name(f"{place.name}-{rank}") for rank in range(RANKS)]
                calibrated[RANKS] += run_trainings(
                    config, places, steps, **alone, batch_size=whole // RANKS
                )
            else:
                case = next(each for each in CASES if each.name == job)
                together = {"strategy": "mpi", "ranks": RANKS, "batch_size": whole}
                run_trainings(config, [place], steps, **together, **case.options)
                measured[job].append(median_step_s(place, RANKS))
    TrainingOfOptions(config).run([top / "costs"], FIRST_STEPS, whole // RANKS, is_first=True)
    profile = profile_of_runs(calibrated, global_batch=whole)
    profile = msgspec.structs.replace(profile, **read_costs(top / COSTS))
    sums = measure_sums(top / "sums", profile.gradient_bytes, RANKS, console)
    overhead_s = measure_overhead(top / "link", RANKS, console)
    profile = msgspec.structs.replace(profile, **sums, message_overhead_s=overhead_s)
    write_profile(top, profile)
    return [_result(config.model, case, profile, measured[case.name]) for case in CASES]


def _result(
    model: str, case: ValidatedCase, profile: ProgramProfile, measured: Sequence[float]
) -> CaseResult:
    target = Target(
        machine=None,
        ranks_per_node=RANKS,
        link=None if case.link is None else Link.parse(case.link),
        overlap=case.overlap,
    )
    step = plan_ranks(profile, target, [RANKS])[0].step
    halves = [statistics.median(measured[start::2]) for start in (0, 1) if measured[start::2]]
    alone = next(each for each in profile.times if each.at_once == 1)
    return CaseResult(
        model=model,
        case=case.name,
        predicted_s=step.median,
        low_s=step.low,
        high_s=step.high,
        measured_s=statistics.median(measured),
        floor=abs(halves[0] / halves[-1] - 1),
        perfect_s=alone.median_s / RANKS,
    )


def result_lines(results: Sequence[CaseResult], rounds: int) -> list[str]:
    """Return the cases as a table, milliseconds and percent, the worst first."""
    lines = [
        f"{RANKS} ranks of this machine, {rounds} rounds; link: {LINK}",
        f" {'model, case':28s} predicted (90 % range)    measured   error  floor  half of alone",
    ]
    for each in sorted(results, key=lambda each: -abs(each.error)):
        low, high = 1e3 * each.low_s, 1e3 * each.high_s
        lines.append(
            f" {each.model + ', ' + each.case:28s} {1e3 * each.predicted_s:7.3f} "
            f"({low:.3g}–{high:.3g})".ljust(56)
            + f"{1e3 * each.measured_s:7.3f} {100 * each.error:+6.1f} % {100 * each.floor:4.1f} % "
            f"{100 * (each.perfect_s / each.measured_s - 1):+8.1f} %"
        )
    return lines
