"""Events and records with plausible values, of which a test chooses those that matter to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    Event,
    FinishedEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import EventWriter, rank_file, write_record
from phalanx.records.schema import Environment, Outcome, Run, Setting, Study

STARTED = StartedEvent(
    at_s=0.5,
    rank=0,
    hostname="example",
    process_id=1000,
    local_rank=0,
    threads=1,
    startup_s=2.0,
    parameters=10,
    train_samples=100,
    validation_samples=100,
)
STEP = StepEvent(
    at_s=1.0,
    epoch=0,
    step=0,
    samples=1,
    loss_sum=1.0,
    data_s=0.0,
    forward_s=0.0,
    backward_s=0.0,
    communication_s=0.0,
    optimizer_s=0.0,
)
EPOCH = EpochEvent(
    at_s=0.0, epoch=0, train_s=1.0, samples=1, loss_sum=0.0, correct=0, communicated_bytes=0
)
EVALUATION = EvaluationEvent(
    at_s=0.0, epoch=0, evaluation_s=0.1, samples=1, loss_sum=0.0, correct=0
)
FINISHED = FinishedEvent(at_s=60.0, parameters_sha256="0" * 64, peak_memory_bytes=400 << 20)
ENVIRONMENT = Environment(
    hostname="example",
    processor="Example CPU @ 2.70GHz",
    cores=2,
    memory_bytes=16 << 30,
    operating_system="Linux 6.1",
    python="3.11.2",
    torch="2.11.0",
    mpi="Open MPI v5.0.8",
    packages={"mpi4py": "4.1.0", "numpy": "2.4.0"},
    phalanx="0.1.0",
    commit="0123456789abcdef",
    load_average=0.2,
)
RUN = Run(
    study="alone",
    run="run",
    command="phalanx train",
    config={"lr": 1e-3, "per_rank_batch_size": None},
    setting=Setting(
        model="mlp",
        dataset="mnist",
        strategy="mpi",
        ranks=1,
        threads=1,
        global_batch_size=128,
        epochs=5,
        learning_rate=1e-3,
        learning_rate_rule="none",
        optimizer="adam",
        seed=0,
        dtype="float32",
    ),
    environment=ENVIRONMENT,
    outcome=Outcome(status="completed"),
    started_at="2026-01-05T09:00:00Z",
    ended_at="2026-01-05T09:01:00Z",
)


def started(rank: int = 0, **chosen: Any) -> StartedEvent:
    return replace(STARTED, rank=rank, local_rank=rank, process_id=1000 + rank, **chosen)


def step(number: int = 0, *, computing_s: float | None = None, **chosen: Any) -> StepEvent:
    """computing_s: of all parts but the communication."""
    if computing_s is not None:
        shares = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5, "optimizer_s": 0.1}
        chosen = {name: share * computing_s for name, share in shares.items()} | chosen
    return replace(STEP, step=number, **chosen)


def epoch(number: int = 0, **chosen: Any) -> EpochEvent:
    return replace(EPOCH, epoch=number, **chosen)


def evaluation(number: int = 0, **chosen: Any) -> EvaluationEvent:
    return replace(EVALUATION, epoch=number, **chosen)


def set_otherwise(run: Run, **setting: Any) -> Run:
    """Return a run with other fields of its setting."""
    return replace(run, setting=replace(run.setting, **setting))


def write_study(folder: Path, kind: str, runs: Sequence[str], **chosen: Any) -> Path:
    study = Study(
        study=folder.name,
        kind=kind,
        command=f"phalanx study {kind}",
        started_at="2026-01-05T09:00:00Z",
        runs=list(runs),
    )
    write_record(folder, replace(study, **chosen))
    return folder


def write_run(folder: Path, run: Run, ranks: Iterable[Iterable[Event]]) -> Path:
    """ranks: the events of each."""
    write_record(folder, run)
    for rank, events in enumerate(ranks):
        write_events(rank_file(folder, rank), events)
    return folder


def write_events(path: Path, events: Iterable[Event]) -> None:
    writer = EventWriter(path)
    for event in events:
        writer.add(event)
    writer.close()
