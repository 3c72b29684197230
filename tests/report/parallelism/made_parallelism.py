"""Makes folders of a parallelism study with chosen numbers, through phalanx.records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from phalanx.records.events import ActionEvent, Event, ExpectedCosts, MemoryEvent, StepEvent
from phalanx.records.schema import Outcome, Run
from tests.report import made_events
from tests.report.collectives.made_bench import make_bench
from tests.report.made_events import (
    FINISHED,
    RUN,
    set_otherwise,
    started,
    write_run,
    write_study,
)

COMPLETED = Outcome(status="completed")
PARAMETERS = 250_000
FULL_BYTES = 4 * PARAMETERS
STEPS, EPOCHS, BATCH = 20, 3, 128
SAMPLES = STEPS * BATCH
MICRO_BATCHES = 4
LEFT_OUT = {"mlp-1f1b-4-s0": "pp=4 stages, but mlp has 3 layers to split between"}


@dataclass(frozen=True, kw_only=True)
class Made:
    """One run to make, and what its ranks write."""

    name: str
    strategy: str
    ranks: int = 1
    model: str = "mlp"
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)
    step_s: float = 2e-3
    waiting: float = 0.3  # share of a step
    sent_bytes: int = 0  # of a rank and step
    formula_bytes: float | None = None
    state_bytes: int = 4 * FULL_BYTES
    state_formula_bytes: float | None = None
    servers: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    worse_by: float = 0.0  # of the loss
    bubble: float | None = None
    outcome: Outcome = COMPLETED


def schemes() -> list[Made]:
    """A study on 2 and 4 ranks: 4 seconds alone, faster or slower split."""
    runs = [Made(name="mlp-sequential-1-s0", strategy="sequential", waiting=0.0)]
    for ranks in (2, 4):
        all_reduce = round(2 * (ranks - 1) / ranks * FULL_BYTES)
        runs += [
            Made(
                name=f"mlp-ring-{ranks}-s0",
                strategy="mpi",
                ranks=ranks,
                options={"all_reduce": "ring"},
                step_s=1.6e-3,
                sent_bytes=all_reduce,
                formula_bytes=all_reduce,
                state_formula_bytes=4 * FULL_BYTES,
            ),
            Made(
                name=f"mlp-zero-3-{ranks}-s0",
                strategy="zero",
                ranks=ranks,
                mesh={"shard": ranks},
                step_s=3e-3,
                sent_bytes=2 * all_reduce,
                formula_bytes=1.5 * all_reduce,
                state_bytes=4 * FULL_BYTES // ranks,
                state_formula_bytes=4 * FULL_BYTES / ranks,
            ),
            Made(
                name=f"mlp-server-asynchronous-{ranks}-s0",
                strategy="server",
                ranks=ranks,
                servers=1,
                options={"server_mode": "asynchronous"},
                sent_bytes=FULL_BYTES,
                staleness={0: 5, 1: 30, 3: 5},
                worse_by=0.04,
            ),
            Made(
                name=f"gpt-1f1b-{ranks}-s0",
                strategy="pipeline",
                model="gpt",
                ranks=ranks,
                mesh={"pp": ranks},
                bubble=(ranks - 1) / (MICRO_BATCHES + ranks - 1),
            ),
        ]
    runs.append(Made(name="gpt-sequential-1-s0", strategy="sequential", model="gpt", waiting=0.0))
    return runs


def scratch(workers: Sequence[int] = (1, 2, 8, 128)) -> list[Made]:
    return [
        Made(
            name=f"scratch-{scheme}-{ranks}-h{hidden}",
            strategy=scheme,
            model="network",
            ranks=ranks,
            options={"hidden": str(hidden)},
            step_s=1e-4 * hidden / 64 * (1 + ranks / 4),
        )
        for hidden in (64, 256)
        for scheme, ranks in [("alone", 1), *(("ring", n) for n in workers if n > 1)]
    ]


def failed() -> Made:
    error = "RuntimeError: </script><b>lost</b> & gone"
    return Made(
        name="mlp-gloo-4-s0",
        strategy="gloo",
        ranks=4,
        outcome=Outcome(status="failed", error=error, rank=2),
    )


def parallelism_study(folder: Path) -> Path:
    """Everything: schemes, from scratch, a failed run, one not made yet, algorithms."""
    runs = [*schemes(), *scratch(), failed()]
    make(folder, runs, also_planned=["mlp-shared-4-s0"])
    naive = {"naive": (1e-6, 20e-6, 400e-6, 9e-3), "ring": (9e-6, 30e-6, 200e-6, 3e-3)}
    make_bench(folder / "algorithms" / "ranks-4", medians=naive, ranks=4)
    return folder


def make(folder: Path, runs: Sequence[Made], also_planned: Sequence[str] = ()) -> Path:
    names = [*(run.name for run in runs), *also_planned]
    write_study(folder, "parallelism", names, left_out=LEFT_OUT)
    for run in runs:
        make_run(folder / run.name, run, folder.name)
    return folder


def make_run(folder: Path, made: Made, study: str = "alone") -> Path:
    events = (events_of(made, rank) for rank in range(made.ranks))
    return write_run(folder, run_of(made, study), events)


def run_of(made: Made, study: str) -> Run:
    command = f"phalanx train --strategy {made.strategy}"
    return set_otherwise(
        replace(RUN, study=study, run=made.name, command=command, outcome=made.outcome),
        model=made.model,
        dataset="text" if made.model == "gpt" else "digits",
        strategy=made.strategy,
        ranks=made.ranks,
        global_batch_size=BATCH,
        epochs=EPOCHS,
        mesh=made.mesh,
        options=made.options,
    )


def events_of(made: Made, rank: int) -> Iterator[Event]:
    is_server = rank < made.servers
    yield started(
        rank,
        parameters=PARAMETERS,
        train_samples=SAMPLES,
        validation_samples=1_000,
        role="server" if is_server else "worker",
        coordinates=dict.fromkeys(made.mesh, rank),
        expected=ExpectedCosts(
            sent_bytes=made.formula_bytes,
            received_bytes=made.formula_bytes,
            traffic_formula="2(p\N{MINUS SIGN}1)/p \N{MIDDLE DOT} 4\N{GREEK CAPITAL LETTER PSI}",
            state_bytes=made.state_formula_bytes,
            state_formula="16\N{GREEK CAPITAL LETTER PSI}/p",
            bubble=made.bubble,
        ),
    )
    if made.outcome.status != "completed":
        return
    workers = made.ranks - made.servers
    for epoch in range(EPOCHS):
        if not is_server:
            yield from steps_of(made, epoch, workers)
        yield made_events.epoch(
            epoch,
            at_s=10.0 * (epoch + 1),
            train_s=STEPS * made.step_s,
            samples=0 if is_server else SAMPLES // workers,
            loss_sum=0.0 if is_server else SAMPLES // workers * loss_at(made, epoch * STEPS),
            correct=0 if is_server else SAMPLES // workers // 2,
            communicated_bytes=FULL_BYTES * STEPS,
            sent_bytes=made.sent_bytes * STEPS,
            received_bytes=made.sent_bytes * STEPS,
            staleness=made.staleness if is_server and epoch == 0 else {},
        )
        if epoch == 0 and not is_server:
            yield memory_of(made)
        yield made_events.evaluation(
            epoch,
            at_s=10.0 * (epoch + 1) + 1,
            samples=0 if is_server else 1_000 // workers,
            loss_sum=0.0 if is_server else 1_000 // workers * loss_at(made, (epoch + 1) * STEPS),
            correct=0 if is_server else 900 // workers,
        )
    if made.bubble is not None:
        yield from actions_of(made, rank)
    yield FINISHED


def steps_of(made: Made, epoch: int, workers: int) -> Iterator[StepEvent]:
    for number in range(epoch * STEPS, (epoch + 1) * STEPS):
        yield made_events.step(
            number,
            epoch=epoch,
            samples=BATCH // workers,
            loss_sum=BATCH // workers * loss_at(made, number),
            computing_s=made.step_s * (1 - made.waiting),
            communication_s=made.step_s * made.waiting,
        )


def memory_of(made: Made) -> MemoryEvent:
    quarter = made.state_bytes // 4
    return MemoryEvent(
        at_s=2.0,
        parameters_bytes=quarter,
        gradients_bytes=quarter,
        optimizer_bytes=2 * quarter,
        resident_bytes=3 * made.state_bytes,
    )


def loss_at(made: Made, step: int) -> float:
    return (0.3 + 2.0 * math.exp(-step / 15)) * (1 + made.worse_by)


def actions_of(made: Made, rank: int) -> Iterator[ActionEvent]:
    """Two steps of GPipe with pieces of 1 ms, a backward as long as a forward."""
    for step in (0, 1):
        for kind_number in (0, 1):
            for micro_batch in range(MICRO_BATCHES):
                along = rank if kind_number == 0 else made.ranks - 1 - rank
                slot = micro_batch + along + kind_number * (MICRO_BATCHES + made.ranks - 1)
                began_s = step + slot * 1e-3
                yield ActionEvent(
                    at_s=3.0,
                    step=step,
                    stage=rank,
                    micro_batch=micro_batch,
                    kind="backward" if kind_number else "forward",
                    began_s=began_s,
                    ended_s=began_s + 1e-3,
                )
