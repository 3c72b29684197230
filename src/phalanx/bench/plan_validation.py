"""Validate plans on this machine: calibration and the runs that are predicted take turns.

No step of ranks that communicate is in a calibration. The floor beside each error is how well one
half of the rounds predicts the other half of the same cell: no prediction can do better.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

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
from phalanx.jobs.core_probe import call_s
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.measured_rows import median_step_s
from phalanx.plan.predict import Predictor, Target, plan_ranks
from phalanx.plan.profile import ProgramProfile, profile_of_runs, read_profile, write_profile
from phalanx.plan.validation import CaseResult
from phalanx.records.events import StepEvent
from phalanx.records.files import rank_file, read_events, read_run, write_atomically
from phalanx.records.plan import PlannedRange
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
    "3 ranks": {"ranks": 3},
    "4 ranks": {"ranks": 4},
    "8 ranks": {"ranks": 8},
    "4 ranks, dp=2,pp=2": {"ranks": 4, "strategy": "mesh", "mesh": "dp=2,pp=2"},
    "4 ranks, dp=2,shard=2": {"ranks": 4, "strategy": "mesh", "mesh": "dp=2,shard=2"},
    "4 ranks, dp=2,tp=2": {"ranks": 4, "strategy": "mesh", "mesh": "dp=2,tp=2"},
}
"""Ways to run a model: options beside --strategy mpi and --ranks `RANKS`, which are as many as the
machine has cores or more."""
MOST_RANKS = 8
MEASURED = "measured.json"
WHOLE = "whole run"


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
    smallest = max(1, whole // MOST_RANKS)
    calibrations = {
        f"{number} at once, {batch} samples": (number, batch)
        for number, batch in ((1, whole), (1, smallest), (RANKS, whole // RANKS), (RANKS, smallest))
    }
    runs: dict[int, list[Path]] = {1: [], RANKS: []}
    measured: dict[str, list[str]] = {name: [] for name in cases}
    jobs, calls = [*calibrations, *cases], list[float]()
    for number in range(rounds):
        console.print(f"{config.model}: round {number + 1} of {rounds}", markup=False)
        shift = number % len(jobs)
        for job in (*jobs[shift:], *jobs[:shift]):
            calls.append(call_s())
            place = top / f"round-{number}-{jobs.index(job)}"
            if job in calibrations:
                at_once, batch = calibrations[job]
                places = [place.with_name(f"{place.name}-{rank}") for rank in range(at_once)]
                run_trainings(config, places, steps, **alone, batch_size=batch)
                runs[at_once] += places
            else:
                together = {"strategy": "mpi", "ranks": RANKS, **CASES[job]}
                run_trainings(config, [place], steps, batch_size=whole, **together)
                measured[job].append(place.name)
    calibrated = profile_of_runs(runs, global_batch=whole)
    sums = measure_sums(top / "sums", profile.gradient_bytes, RANKS, console)
    overhead_s = measure_overhead(top / "link", RANKS, console)
    profile = msgspec.structs.replace(
        calibrated,
        **read_costs(top / COSTS),
        **sums,
        message_overhead_s=overhead_s,
        call_s=statistics.median(calls),
    )
    write_profile(top, profile)
    write_atomically(top / MEASURED, msgspec.json.encode(measured))
    return results_of(top)


def results_of(top: Path) -> list[CaseResult]:
    """Return the errors of all cases that were measured into a folder, as a plan predicts them now:
    of their steps, and of whole runs from start to end.

    Raises: UserError for a folder without such rounds.
    """
    profile, path = read_profile(top), top / MEASURED
    try:
        measured = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"--here {top} holds no rounds of --validate --rounds: {error}") from error
    found = []
    for case in (name for name in measured if name in CASES):
        runs = [_Run.read(top / PurePath(name).name) for name in measured[case]]
        found += _results(case, profile, runs)
    return found


class _Run(NamedTuple):
    """Times of a run, and the steps and epochs that it had."""

    step_s: float
    whole_s: float
    steps: int
    epochs: int

    @classmethod
    def read(cls, folder: Path) -> _Run:
        events = list(read_events(rank_file(folder, 0)))
        step_s = median_step_s(folder, read_run(folder).setting.ranks)
        epochs = {event.epoch for event in events if isinstance(event, StepEvent)}
        steps = sum(isinstance(event, StepEvent) for event in events)
        return cls(step_s, events[-1].at_s, steps, len(epochs))


def _target(case: str) -> Target:
    options = {"strategy": "mpi", **CASES[case]}
    ranks = options.pop("ranks", RANKS)
    return Target(machine=None, ranks_per_node=ranks, options=StrategyOptions(**options))


def _is_possible(profile: ProgramProfile, case: str, console: Console) -> bool:
    """Return whether a strategy can divide the model; print why not."""
    target = _target(case)
    try:
        Predictor(profile, target, target.ranks_per_node)
    except UserError as error:
        console.print(f"{case} is left out: {error}", markup=False)
        return False
    return True


def _results(case: str, profile: ProgramProfile, runs: Sequence[_Run]) -> list[CaseResult]:
    """Return the errors of a case: of its steps, and of its whole runs."""
    target, (*_, steps, epochs) = _target(case), runs[0]
    ranks, batch = target.ranks_per_node, profile.global_batch
    trained = msgspec.structs.replace(profile, train_samples=steps // epochs * batch)
    planned = plan_ranks(trained, replace(target, epochs=epochs), [ranks])[0]
    alone = next(t for t in profile.times if (t.at_once, t.samples) == (1, batch))
    whole_s = profile.startup_s + steps * alone.median_s + epochs * (profile.evaluation_s or 0)
    step_s, run_s = [run.step_s for run in runs], [run.whole_s for run in runs]
    model, run = profile.model, f"{profile.model}, {case}"
    return [
        case_result(model, case, planned.step_s, step_s, alone.median_s / ranks),
        case_result(run, WHOLE, planned.whole_s, run_s, whole_s / ranks),
    ]


def case_result(
    model: str, case: str, told: PlannedRange, measured: Sequence[float], perfect_s: float
) -> CaseResult:
    """Return a prediction beside the medians of rounds. perfect_s: as of `CaseResult`."""
    halves = [statistics.median(measured[start::2]) for start in (0, 1) if measured[start::2]]
    return CaseResult(
        model=model,
        case=case,
        predicted_s=told.median,
        low_s=told.low,
        high_s=told.high,
        measured_s=statistics.median(measured),
        floor=abs(halves[0] / halves[-1] - 1),
        perfect_s=perfect_s,
        rounds=len(measured),
    )
