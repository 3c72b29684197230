"""Makes folders of a compression study with chosen numbers, through phalanx.records.

A step takes 10 ms, the coding of its compressor, and its bytes over the link's bandwidth; without a
link 1 ms in place of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    Event,
    FinishedEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import rank_file, write_record
from phalanx.records.schema import Outcome, Run, Setting, Study
from tests.report.made_study import ENVIRONMENT, write_events

STEPS, BATCH, VALIDATION = 8, 32, 10_000
COMPUTING_S = 10e-3
BYTES = {"none": 16e6, "bf16": 8e6, "int8": 4.1e6, "topk": 0.32e6}
CODING_S = {"none": 0.0, "bf16": 2e-3, "int8": 6e-3, "topk": 1e-3}
ACCURACY = {"none": 0.970, "bf16": 0.970, "int8": 0.9695, "topk": 0.940}
CHANCE = {"int8": (0.0008, -0.0002, -0.0006), "topk": (0.001, -0.001, 0.0)}
"""Of the accuracy, by seed."""

BANDWIDTHS = {None: None, "10Gbit/s": 1.25e9, "1Gbit/s,1ms": 125e6, "100Mbit/s": 12.5e6}


def make(
    folder: Path,
    *,
    links: bool = True,
    failed: str | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Path:
    """failed: how the names of the runs begin that did."""
    places = [(None, seed) for seed in seeds]
    places += [(link, 0) for link in BANDWIDTHS if link and links]
    jobs = [(name, link, seed) for link, seed in places for name in BYTES]
    study = Study(
        study=folder.name,
        kind="compression",
        command="phalanx study compression",
        started_at="2026-01-05T09:00:00Z",
        runs=[_name(*job) for job in jobs],
    )
    write_record(folder, study)
    for job in jobs:
        target = folder / _name(*job)
        has_failed = failed is not None and _name(*job).startswith(failed)
        outcome = Outcome(status="completed")
        if has_failed:
            outcome = Outcome(status="failed", error="RuntimeError: <b>lost</b>", rank=1)
        write_record(target, _run(*job, outcome))
        for rank in range(2):
            if not has_failed:
                write_events(rank_file(target, rank), list(_events(*job, rank)))
    return folder


def step_s(compressor: str, link: str | None) -> float:
    bandwidth = BANDWIDTHS[link]
    wire_s = BYTES[compressor] / bandwidth if bandwidth else 1e-3
    return COMPUTING_S + CODING_S[compressor] + wire_s


def _name(compressor: str, link: str | None, seed: int) -> str:
    return f"{(link or 'memory').replace('/', '-').replace(',', '-')}-{compressor}-s{seed}"


def _run(compressor: str, link: str | None, seed: int, outcome: Outcome) -> Run:
    return Run(
        study="made",
        run=_name(compressor, link, seed),
        command=f"phalanx train --compress {compressor}",
        config={"compress": compressor, "link": link},
        setting=Setting(
            model="mlp",
            dataset="mnist",
            strategy="mpi",
            ranks=2,
            threads=1,
            global_batch_size=BATCH,
            epochs=1,
            learning_rate=0.02,
            learning_rate_rule="none",
            optimizer="sgd",
            seed=seed,
            dtype="float32",
        ),
        environment=ENVIRONMENT,
        outcome=outcome,
        started_at="2026-01-05T09:00:00Z",
        ended_at="2026-01-05T09:01:00Z",
    )


def _events(compressor: str, link: str | None, seed: int, rank: int) -> Iterator[Event]:
    whole_s = step_s(compressor, link)
    yield StartedEvent(
        at_s=0.5,
        rank=rank,
        hostname="example",
        process_id=1000 + rank,
        local_rank=rank,
        threads=1,
        startup_s=2.0,
        parameters=4_000_000,
        train_samples=STEPS * BATCH,
        validation_samples=VALIDATION,
        collective="direct",
    )
    steps = [_step(number, whole_s * (3 if number < 3 else 1), rank) for number in range(STEPS)]
    yield from steps
    yield EpochEvent(
        at_s=9.0,
        epoch=0,
        train_s=whole_s * STEPS,
        samples=STEPS * BATCH // 2,
        loss_sum=1.0,
        correct=10,
        communicated_bytes=16_000_000 * STEPS,
        sent_bytes=round(BYTES[compressor] * STEPS),
    )
    chance = CHANCE.get(compressor, (0.0, 0.0, 0.0))[seed]
    accuracy = ACCURACY[compressor] + 0.001 * (seed - 1) + chance
    yield EvaluationEvent(
        at_s=9.5,
        epoch=0,
        evaluation_s=0.1,
        samples=VALIDATION // 2,
        loss_sum=1.0,
        correct=round(accuracy * VALIDATION / 2),
    )
    yield FinishedEvent(at_s=10.0, parameters_sha256="0" * 64, peak_memory_bytes=1 << 28)


def _step(number: int, seconds: float, rank: int) -> StepEvent:
    """Rank 1 is the slower one."""
    rest_s = (seconds - COMPUTING_S) * (1 if rank else 0.9)
    return StepEvent(
        at_s=1.0,
        epoch=0,
        step=number,
        samples=BATCH // 2,
        loss_sum=1.0,
        data_s=0.1 * COMPUTING_S,
        forward_s=0.3 * COMPUTING_S,
        backward_s=0.5 * COMPUTING_S,
        communication_s=rest_s,
        optimizer_s=0.1 * COMPUTING_S,
    )
