"""Validate plans on this machine: calibration and the runs that are predicted take turns.

No step of ranks that communicate is in a calibration. The floor beside each error is how well one
half of the rounds predicts the other half of the same cell: no prediction can do better.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from phalanx.errors import UserError
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.predict import Predictor, Target, plan_ranks
from phalanx.plan.profile import ProgramProfile, profile_of_runs, read_profile, write_profile
from phalanx.plan.validation import CaseResult
from phalanx.records.files import write_atomically
from phalanx.train.config import TrainConfig

RANKS = 2
LINK = "1Gbit/s,1ms"
RUN_S = 1.5
MOST_STEPS = 1000


CASES: Mapping[str, Mapping[str, Any]] = {
    "shared memory": {},
    "link, no overlap": {"link": LINK, "overlap": "off"},
    "link, overlap": {"link": LINK, "overlap": "on"},
    "link, fp16": {"link": LINK, "compress": "fp16"},
    "link, int8": {"link": LINK, "compress": "int8"},
    "shared": {"strategy": "shared"},
    "local": {"strategy": "local"},
    "ZeRO 1": {"strategy": "zero", "zero_stage": 1},
    "ZeRO 2": {"strategy": "zero", "zero_stage": 2},
    "ZeRO 3": {"strategy": "zero", "zero_stage": 3},
    "tensor": {"strategy": "tensor"},
    "gpipe": {"strategy": "pipeline", "pipeline_schedule": "gpipe"},
    "1f1b": {"strategy": "pipeline", "pipeline_schedule": "1f1b"},
    "interleaved": {"strategy": "pipeline", "pipeline_schedule": "interleaved"},
    "zero-bubble": {"strategy": "pipeline", "pipeline_schedule": "zero-bubble"},
}
"""Ways to run a model on `RANKS` ranks: options beside --strategy mpi."""
MEASURED = "measured.json"


def validate_here(
    config: TrainConfig, rounds: int, top: Path, console: Console
) -> list[CaseResult]:
    """Return the errors of all cases of a training. config: complete, of one process. top: a new
    folder, for records.

    Raises: RunFailedError when a run fails.
    """
    top.mkdir(parents=True)
    whole = config.global_batch_size()
    alone: dict[str, Any] = {"strategy": "sequential", "ranks": 1}
    TrainingOfOptions(config).run([top / "costs"], FIRST_STEPS, whole, is_first=True)
    first = profile_of_runs({1: [top / "costs"]})
    profile = msgspec.structs.replace(first, **read_costs(top / COSTS))
    step_s = profile.times[0].median_s
    steps = max(6 * FIRST_STEPS, min(MOST_STEPS, int(RUN_S / step_s)))
    cases = [name for name in CASES if _is_possible(profile, name, console)]
    calibrated: dict[int, list[Path]] = {1: [], RANKS: []}
    measured: dict[str, list[float]] = {name: [] for name in cases}
    jobs = ["alone", "at once", *cases]
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
                together = {"strategy": "mpi", "ranks": RANKS, **CASES[job]}
                run_trainings(config, [place], steps, batch_size=whole, **together)
                measured[job].append(median_step_s(place, RANKS))
    times = profile_of_runs(calibrated, global_batch=whole).times
    sums = measure_sums(top / "sums", profile.gradient_bytes, RANKS, console)
    overhead_s = measure_overhead(top / "link", RANKS, console)
    profile = msgspec.structs.replace(
        profile, global_batch=whole, times=times, **sums, message_overhead_s=overhead_s
    )
    write_profile(top, profile)
    write_atomically(top / MEASURED, msgspec.json.encode(measured))
    return results_of(top)


def results_of(top: Path) -> list[CaseResult]:
    """Return the errors of all cases that were measured into a folder, as a plan predicts them now.

    Raises: UserError for a folder without such rounds.
    """
    profile, path = read_profile(top), top / MEASURED
    try:
        measured = msgspec.json.decode(path.read_bytes(), type=dict[str, list[float]])
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"--here {top} holds no rounds of --validate --rounds: {error}") from error
    known = (name for name in measured if name in CASES)
    return [_result(profile.model, name, profile, measured[name]) for name in known]


def _target(case: str) -> Target:
    options = StrategyOptions(**{"strategy": "mpi", **CASES[case]})
    return Target(machine=None, ranks_per_node=RANKS, options=options)


def _is_possible(profile: ProgramProfile, case: str, console: Console) -> bool:
    """Return whether a strategy can divide the model; print why not."""
    try:
        Predictor(profile, _target(case), RANKS)
    except UserError as error:
        console.print(f"{case} is left out: {error}", markup=False)
        return False
    return True


def _result(
    model: str, case: str, profile: ProgramProfile, measured: Sequence[float]
) -> CaseResult:
    step = plan_ranks(profile, _target(case), [RANKS])[0].step_s
    halves = [statistics.median(measured[start::2]) for start in (0, 1) if measured[start::2]]
    alone = next(each for each in profile.times if each.at_once == 1)
    return CaseResult(
        model=model,
        case=case,
        predicted_s=step.median,
        low_s=step.low,
        high_s=step.high,
        measured_s=statistics.median(measured),
        floor=abs(halves[0] / halves[-1] - 1),
        perfect_s=alone.median_s / RANKS,
        rounds=len(measured),
    )
