"""Records of a large-batch study that nobody ran: every number is chosen here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from phalanx.records.files import rank_file, write_run, write_study
from phalanx.records.schema import Epoch, Evaluation, Finished, Outcome, Started, Step, Study
from phalanx.study.large_batch import LargeBatchConfig, RemedyName, plan
from phalanx.train.config import TrainConfig
from phalanx.train.run import setting_of
from tests.report.made_study import Job, run_of, write_events

EPOCHS = 4
SAMPLES, VALIDATION = 16_384, 1_000
BATCHES = (128, 1_024, 4_096)
DIVERGED = "step 3: gradients are not finite: rank 0, where the loss is nan; <b>first</b> x"

ACCURACY: Mapping[tuple[RemedyName, int], tuple[float, float]] = {
    ("plain", 128): (0.980, 0.984),
    ("lars", 128): (0.982, 0.983),
    ("lamb", 128): (0.970, 0.971),
    ("plain", 1_024): (0.970, 0.972),
    ("linear", 1_024): (0.981, 0.982),
    ("linear-warmup", 1_024): (0.983, 0.984),
    ("sqrt-warmup", 1_024): (0.975, 0.977),
    ("lars", 1_024): (0.983, 0.985),
    ("lamb", 1_024): (0.971, 0.972),
    ("plain", 4_096): (0.930, 0.932),
    ("linear-warmup", 4_096): (0.978, 0.980),
    ("sqrt-warmup", 4_096): (0.955, 0.957),
    ("lars", 4_096): (0.981, 0.985),
    ("lamb", 4_096): (0.972, 0.970),
}
"""Of both seeds, after the last epoch; what is not here diverged in its second epoch."""


def large_batch_study(folder: Path) -> Path:
    study = LargeBatchConfig(batch_sizes=BATCHES, seeds=(0, 1), epochs=EPOCHS)
    planned = plan(study)
    write_study(
        folder,
        Study(
            study=folder.name,
            kind="large-batch",
            command="phalanx study large-batch",
            started_at="2026-01-05T09:00:00Z",
            runs=[run.name for run in planned],
        ),
    )
    for run in planned:
        remedy = run.name.rsplit("-b", 1)[0]
        known = ACCURACY.get((remedy, run.config.batch_size))  # type: ignore[arg-type]
        make_run(folder / run.name, run.config, known[run.config.seed] if known else None)
    return folder


def make_run(folder: Path, config: TrainConfig, accuracy: float | None) -> None:
    complete = replace(config, ranks=1, threads=1, dataset="mnist")
    outcome = Outcome(status="completed")
    if accuracy is None:
        outcome = Outcome(status="failed", error=DIVERGED, rank=0)
    made = run_of(Job("mlp", "sequential", seed=config.seed), "made")
    made = msgspec.structs.replace(
        made, run=folder.name, setting=setting_of(complete), outcome=outcome
    )
    write_run(folder, made)
    assert config.batch_size is not None
    write_events(rank_file(folder, 0), events(config.batch_size, accuracy))


def events(batch_size: int, accuracy: float | None) -> list[object]:
    steps = math.ceil(SAMPLES / batch_size)
    made: list[object] = [
        Started(
            at_s=0.5,
            rank=0,
            hostname="example",
            process_id=1,
            local_rank=0,
            threads=1,
            startup_s=1.0,
            parameters=10,
            train_samples=SAMPLES,
            validation_samples=VALIDATION,
        )
    ]
    for epoch in range(EPOCHS if accuracy is not None else 1):
        final = accuracy if accuracy is not None else 0.1
        now = final - 0.02 * (EPOCHS - 1 - epoch)
        made += [step(epoch, number, batch_size) for number in range(steps)]
        made.append(
            Epoch(
                at_s=epoch + 1.0,
                epoch=epoch,
                train_s=1.0 + 10.0 / batch_size,
                samples=SAMPLES,
                loss_sum=SAMPLES * (1.0 - now),
                correct=round(SAMPLES * (now + 0.01)),
                communicated_bytes=0,
            )
        )
        made.append(
            Evaluation(
                at_s=epoch + 1.5,
                epoch=epoch,
                evaluation_s=0.1,
                samples=VALIDATION,
                loss_sum=VALIDATION * 0.1,
                correct=round(VALIDATION * now),
            )
        )
    if accuracy is not None:
        made.append(Finished(at_s=9.0, parameters_sha256="0" * 64, peak_memory_bytes=1))
    return made


def step(epoch: int, number: int, batch_size: int) -> Step:
    return Step(
        at_s=1.0,
        epoch=epoch,
        step=number,
        samples=batch_size,
        loss_sum=1.0,
        data_s=0.1,
        forward_s=0.1,
        backward_s=0.1,
        communication_s=0.0,
        optimizer_s=0.1,
    )
