"""Records of a survival study that nobody ran: every number is chosen here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.records.events import (
    Certificate,
    Event,
    FinishedEvent,
    InjectedEvent,
    MetricsEvent,
    RecoveredEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import rank_file, write_record
from phalanx.records.schema import Outcome, Study
from tests.report.made_study import Job, run_of, write_events

RANKS, STEPS, STEP_S = 3, 60, 0.05
NOTICE_S, RECOVERY_S = 0.03, 0.02
UNIX_S, STARTUP_S = 1_700_000_000.0, 2.0
CLOCKS = (0.0, 0.3, -0.2)
"""By which ranks began to count later than rank 0."""


class Death(NamedTuple):
    """A rank that dies during a step, so long after its begin."""

    step: int
    rank: int
    after_s: float = 0.01

    @property
    def cost_s(self) -> float:
        """By which the step takes longer: all of it is computed again."""
        return self.after_s + NOTICE_S + RECOVERY_S


def loss_of(step: int, seed: int) -> float:
    return 2.0 * math.exp(-step / 30) + 0.01 * seed


def sha_of(seed: int) -> str:
    return f"{seed:02x}" * 32


def started_at(step: int, deaths: Sequence[Death]) -> float:
    """Seconds from the begin of the first step to the begin of a step."""
    return step * STEP_S + sum(death.cost_s for death in deaths if death.step < step)


def events_of(rank: int, seed: int, deaths: Sequence[Death], sha: str) -> list[Event]:
    """Return the events of a rank."""
    clock = STARTUP_S - CLOCKS[rank]
    own = next((death for death in deaths if death.rank == rank), None)
    made: list[Event] = [
        StartedEvent(
            at_s=clock - 0.1,
            time_s=UNIX_S + STARTUP_S - 0.1,
            rank=rank,
            hostname="example",
            process_id=1 + rank,
            local_rank=rank,
            threads=1,
            startup_s=1.0,
            parameters=10,
            train_samples=100,
            validation_samples=0,
        )
    ]
    for step in range(STEPS):
        began_s = started_at(step, deaths)
        if own is not None and step == own.step:
            at_s = began_s + own.after_s
            moment = UNIX_S + STARTUP_S + at_s
            return [
                *made,
                InjectedEvent(at_s=clock + at_s, time_s=moment, kind="kill", rank=rank, step=step),
            ]
        ended_s = clock + started_at(step + 1, deaths)
        made += [
            RecoveredEvent(
                at_s=clock + began_s + death.cost_s,
                step=step,
                lost=[death.rank],
                recovery_s=RECOVERY_S,
            )
            for death in deaths
            if death.step == step
        ]
        made.append(step_event(ended_s, step, ended_s - clock - began_s))
        if rank == min(set(range(RANKS)) - {d.rank for d in deaths if d.step <= step}):
            metrics = {"loss": loss_of(step, seed)}
            made.append(MetricsEvent(at_s=ended_s, epoch=0, step=step, metrics=metrics))
    certificate = Certificate(
        sha256=sha,
        steps=STEPS,
        micro_batches=8,
        threads=1,
        torch="2.13.0",
        torch_build="x",
        instruction_set="AVX512",
        strategy="mpi",
    )
    end_s = clock + started_at(STEPS, deaths) + 0.1
    finished = FinishedEvent(
        at_s=end_s, parameters_sha256=sha, peak_memory_bytes=1, certificate=certificate
    )
    return [*made, finished]


def step_event(at_s: float, step: int, took_s: float) -> StepEvent:
    return StepEvent(
        at_s=at_s,
        epoch=0,
        step=step,
        samples=10,
        loss_sum=1.0,
        data_s=0.0,
        forward_s=took_s / 2,
        backward_s=took_s / 2,
        communication_s=0.0,
        optimizer_s=0.0,
    )


DEATHS = {0: (Death(20, 2), Death(40, 0, 0.02)), 1: (Death(30, 1),)}
"""By seed."""


def survival_study(folder: Path, *, other_bits: bool = False) -> Path:
    """other_bits: the disturbed run of seed 1 ends with bits of its own."""
    plan = {
        f"{way}-s{seed}": (seed, DEATHS[seed] if way == "in-place" else ())
        for seed in DEATHS
        for way in ("undisturbed", "in-place")
    }
    study = Study(
        study=folder.name,
        kind="survival",
        command="phalanx study survival",
        started_at="2026-01-05T09:00:00Z",
        runs=list(plan),
        left_out={"restarts": "--restarts: <b>not</b> here"},
    )
    write_record(folder, study)
    for name, (seed, deaths) in plan.items():
        run = run_of(Job("mlp", "mpi", ranks=RANKS, seed=seed), study.study)
        outcome = Outcome(status="completed", lost=sorted(death.rank for death in deaths))
        write_record(folder / name, msgspec.structs.replace(run, run=name, outcome=outcome))
        is_other = other_bits and name == "in-place-s1"
        sha = "ff" * 32 if is_other else sha_of(seed)
        for rank in range(RANKS):
            write_events(rank_file(folder / name, rank), events_of(rank, seed, deaths, sha))
    return folder
