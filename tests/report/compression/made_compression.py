"""Makes folders of a compression study with chosen numbers, through phalanx.records.

A step takes 10 ms, the coding of its compressor, and its bytes over the link's bandwidth; without a
link 1 ms in place of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from phalanx.records.events import Event
from phalanx.records.schema import Outcome, Run
from tests.report.made_events import (
    FINISHED,
    RUN,
    epoch,
    evaluation,
    set_otherwise,
    started,
    step,
    write_run,
    write_study,
)

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
    write_study(folder, "compression", [_name(*job) for job in jobs])
    for job in jobs:
        outcome, ranks = Outcome(status="completed"), range(2)
        if failed is not None and _name(*job).startswith(failed):
            outcome = Outcome(status="failed", error="RuntimeError: <b>lost</b>", rank=1)
            ranks = range(0)
        events = (_events(*job, rank) for rank in ranks)
        write_run(folder / _name(*job), _run(*job, outcome), events)
    return folder


def step_s(compressor: str, link: str | None) -> float:
    bandwidth = BANDWIDTHS[link]
    wire_s = BYTES[compressor] / bandwidth if bandwidth else 1e-3
    return COMPUTING_S + CODING_S[compressor] + wire_s


def _name(compressor: str, link: str | None, seed: int) -> str:
    return f"{(link or 'memory').replace('/', '-').replace(',', '-')}-{compressor}-s{seed}"


def _run(compressor: str, link: str | None, seed: int, outcome: Outcome) -> Run:
    run = replace(
        RUN,
        study="made",
        run=_name(compressor, link, seed),
        command=f"phalanx train --compress {compressor}",
        config={"compress": compressor, "link": link},
        outcome=outcome,
    )
    return set_otherwise(
        run,
        ranks=2,
        global_batch_size=BATCH,
        epochs=1,
        learning_rate=0.02,
        optimizer="sgd",
        seed=seed,
    )


def _events(compressor: str, link: str | None, seed: int, rank: int) -> Iterator[Event]:
    """Rank 1 is the slower one."""
    whole_s = step_s(compressor, link)
    yield started(
        rank,
        parameters=4_000_000,
        train_samples=STEPS * BATCH,
        validation_samples=VALIDATION,
        collective="direct",
    )
    for number in range(STEPS):
        rest_s = whole_s * (3 if number < 3 else 1) - COMPUTING_S
        yield step(
            number,
            computing_s=COMPUTING_S,
            communication_s=rest_s * (1 if rank else 0.9),
            samples=BATCH // 2,
        )
    yield epoch(
        at_s=9.0,
        train_s=whole_s * STEPS,
        samples=STEPS * BATCH // 2,
        loss_sum=1.0,
        correct=10,
        communicated_bytes=16_000_000 * STEPS,
        sent_bytes=round(BYTES[compressor] * STEPS),
    )
    chance = CHANCE.get(compressor, (0.0, 0.0, 0.0))[seed]
    accuracy = ACCURACY[compressor] + 0.001 * (seed - 1) + chance
    yield evaluation(
        at_s=9.5,
        samples=VALIDATION // 2,
        loss_sum=1.0,
        correct=round(accuracy * VALIDATION / 2),
    )
    yield FINISHED
