"""Records of a large-batch study that nobody ran: every number is chosen here."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from phalanx.records.events import Event, TrainingEvaluationEvent
from phalanx.records.schema import Outcome
from phalanx.study.large_batch import LargeBatchConfig, RemedyName, runs_of
from phalanx.train.config import TrainConfig
from phalanx.train.run import setting_of
from tests.report import made_events
from tests.report.made_events import FINISHED, RUN, started, write_run, write_study

EPOCHS = 4
SAMPLES, VALIDATION = 16_384, 10_000
BATCHES = (128, 1_024, 4_096)
DIVERGED = "step 3: gradients are not finite: rank 0, where the loss is nan; <b>first</b> x"

SEEDS = (0, 1, 2, 3)
OFFSETS = (-0.0015, 0.0, 0.0005, 0.0010)
"""What a seed is worth, whatever the remedy and the batch."""

Cell = tuple[RemedyName, int]

ACCURACY: Mapping[Cell, float] = {
    ("plain", 128): 0.982,
    ("lars", 128): 0.985,
    ("lamb", 128): 0.970,
    ("plain", 1_024): 0.971,
    ("linear", 1_024): 0.982,
    ("linear-warmup", 1_024): 0.9835,
    ("sqrt-warmup", 1_024): 0.976,
    ("lars", 1_024): 0.985,
    ("lamb", 1_024): 0.971,
    ("plain", 4_096): 0.931,
    ("linear-warmup", 4_096): 0.979,
    ("sqrt-warmup", 4_096): 0.956,
    ("lars", 4_096): 0.9835,
    ("lamb", 4_096): 0.971,
}
"""Means after the last epoch; what is not here diverged in its second epoch."""


def accuracy_of(cell: Cell, seed: int, means: Mapping[Cell, float]) -> float:
    noise = random.Random(f"{cell} {seed}").uniform(-0.0002, 0.0002)
    return round(means[cell] + OFFSETS[seed % len(OFFSETS)] + noise, 4)


def large_batch_study(
    folder: Path,
    means: Mapping[Cell, float] = ACCURACY,
    diverged: Collection[tuple[Cell, int]] = (),
    seeds: tuple[int, ...] = SEEDS,
) -> Path:
    """diverged: (cell, seed) of runs that did, of cells that have a mean."""
    study = LargeBatchConfig(batch_sizes=BATCHES, seeds=seeds, epochs=EPOCHS)
    planned = runs_of(study)
    write_study(folder, "large-batch", [run.name for run in planned])
    for run in planned:
        remedy: RemedyName = run.name.rsplit("-b", 1)[0]  # type: ignore[assignment]
        assert run.config.batch_size is not None
        cell, seed = (remedy, run.config.batch_size), run.config.seed
        survives = cell in means and (cell, seed) not in diverged
        make_run(
            folder / run.name, run.config, accuracy_of(cell, seed, means) if survives else None
        )
    return folder


def make_run(folder: Path, config: TrainConfig, accuracy: float | None) -> None:
    complete = replace(config, ranks=1, threads=1, dataset="mnist")
    outcome = Outcome(status="completed")
    if accuracy is None:
        outcome = Outcome(status="failed", error=DIVERGED, rank=0)
    setting = setting_of(complete)
    run = msgspec.structs.replace(RUN, run=folder.name, setting=setting, outcome=outcome)
    assert config.batch_size is not None
    write_run(folder, run, [events(config.batch_size, accuracy)])


def events(batch_size: int, accuracy: float | None) -> Iterator[Event]:
    steps = math.ceil(SAMPLES / batch_size)
    parts = dict.fromkeys(("data_s", "forward_s", "backward_s", "optimizer_s"), 0.1)
    yield started(train_samples=SAMPLES, validation_samples=VALIDATION)
    for epoch in range(EPOCHS if accuracy is not None else 1):
        final = accuracy if accuracy is not None else 0.1
        now = final - 0.02 * (EPOCHS - 1 - epoch)
        for number in range(steps):
            yield made_events.step(number, epoch=epoch, samples=batch_size, **parts)
        yield made_events.epoch(
            epoch,
            at_s=epoch + 1.0,
            train_s=1.0 + 10.0 / batch_size,
            samples=SAMPLES,
            loss_sum=SAMPLES * (1.0 - now),
            correct=round(SAMPLES * (now + 0.01)),
        )
        yield made_events.evaluation(
            epoch,
            at_s=epoch + 1.5,
            samples=VALIDATION,
            loss_sum=VALIDATION * 0.1,
            correct=round(VALIDATION * now),
        )
    if accuracy is not None:
        yield TrainingEvaluationEvent(
            at_s=8.0,
            epoch=EPOCHS - 1,
            evaluation_s=0.1,
            samples=VALIDATION,
            loss_sum=1.0,
            correct=round(VALIDATION * (accuracy + 0.005)),
        )
        yield FINISHED
