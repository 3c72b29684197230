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
)
from phalanx.records.schema import Outcome
from tests.report.made_events import RUN, set_otherwise, started, step, write_run, write_study

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
        started(rank, at_s=clock - 0.1, time_s=UNIX_S + STARTUP_S - 0.1, validation_samples=0)
    ]
    for number in range(STEPS):
        began_s = started_at(number, deaths)
        if own is not None and number == own.step:
            at_s = began_s + own.after_s
            moment = UNIX_S + STARTUP_S + at_s
            return [
                *made,
                InjectedEvent(
                    at_s=clock + at_s, time_s=moment, kind="kill", rank=rank, step=number
                ),
            ]
        ended_s = clock + started_at(number + 1, deaths)
        made += [
            RecoveredEvent(
                at_s=clock + began_s + death.cost_s,
                step=number,
                lost=[death.rank],
                recovery_s=RECOVERY_S,
            )
            for death in deaths
            if death.step == number
        ]
        half_s = (ended_s - clock - began_s) / 2
        made.append(step(number, at_s=ended_s, samples=10, forward_s=half_s, backward_s=half_s))
        if rank == min(set(range(RANKS)) - {d.rank for d in deaths if d.step <= number}):
            metrics = {"loss": loss_of(number, seed)}
            made.append(MetricsEvent(at_s=ended_s, epoch=0, step=number, metrics=metrics))
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


DEATHS = {0: (Death(20, 2), Death(40, 0, 0.02)), 1: (Death(30, 1),)}
"""By seed."""


def survival_study(folder: Path, *, other_bits: bool = False) -> Path:
    """other_bits: the disturbed run of seed 1 ends with bits of its own."""
    plan = {
        f"{way}-s{seed}": (seed, DEATHS[seed] if way == "in-place" else ())
        for seed in DEATHS
        for way in ("undisturbed", "in-place")
    }
    write_study(
        folder, "survival", list(plan), left_out={"restarts": "--restarts: <b>not</b> here"}
    )
    for name, (seed, deaths) in plan.items():
        outcome = Outcome(status="completed", lost=sorted(death.rank for death in deaths))
        run = msgspec.structs.replace(RUN, study=folder.name, run=name, outcome=outcome)
        sha = "ff" * 32 if other_bits and name == "in-place-s1" else sha_of(seed)
        events = (events_of(rank, seed, deaths, sha) for rank in range(RANKS))
        write_run(folder / name, set_otherwise(run, ranks=RANKS, seed=seed), events)
    return folder
