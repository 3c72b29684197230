"""Pipelines whose bits must be those of one process, one after the other.

Words: a folder for their records; a checkpoint of `drawing` to resume from, without which few
cases are trained.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.jobs.detect import detect
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

SMALL = {"train_samples": 150, "validation_samples": 61, "batch_size": 32, "epochs": 2}
DRAWING = f"{Path(__file__).with_name('staged_models.py')}:drawing"
CASES: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"model": "mlp", "width": 16, "clip_norm": 0.5, "label_smoothing": 0.1},
    "resnet": {"model": "resnet", "width": 4, "optimizer": "lars", "train_samples": 70},
    "gpt": {
        "model": "gpt", "dataset": "text", "width": 16, "layers": 2, "heads": 2, "batch_size": 12,
        "train_samples": 40, "validation_samples": 9, "bad_gradients": "skip", "clip_norm": 1.0,
        "optimizer": "lamb", "autocast": "bf16",
    },
    "drawing": {"model": DRAWING, "train_samples": 70, "clip_norm": 0.7, "warmup_epochs": 0.5},
    "skipped": {
        "model": "mlp", "width": 16, "lr": 1e38, "bad_gradients": "skip", "optimizer": "sgd",
        "epochs": 1,
    },
}  # fmt: skip
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "gpipe": ("gpt",), "interleaved": ("drawing",), "zero-bubble": ("drawing",)
}  # fmt: skip
"""Cases of other schedules than 1f1b."""
LINKED = ("drawing",)
"""Cases over messages."""
FEW = ("drawing", "gpt")
MAX_RANKS = {"mlp": 3, "skipped": 3}
"""Of cases that have no more layers."""


def cases_on(ranks: int) -> list[str]:
    return [name for name in CASES if ranks <= MAX_RANKS.get(name, ranks)]


def run(name: str, folder: Path, **options: Any) -> None:
    launched = detect(os.environ)
    strategy = "pipeline" if launched and launched.world_size > 1 else "sequential"
    given = {"strategy": strategy, "dataset": "digits", **SMALL, **CASES[name], **options}
    config = TrainConfig.from_options(bitwise=True, run_dir=folder / name, **given)
    train(config, launched)


def run_further(folder: Path, checkpoint: Path) -> None:
    """Train by other schedules, from checkpoints, and over messages."""
    for schedule, names in SCHEDULES.items():
        for name in names:
            run(name, folder / schedule, pipeline_schedule=schedule)
    run("drawing", folder / "resumed", resume=checkpoint)
    saved = folder / "checkpoints"
    run("drawing", folder / "saved", checkpoint_dir=saved, checkpoint_steps=2)
    run("drawing", folder / "zero", strategy="zero", zero_stage=1, resume=saved / checkpoint.name)
    os.environ["PHALANX_LINK"] = "10Gbit/s"  # no rank shares memory with another
    for name in LINKED:
        run(name, folder / "linked")


if __name__ == "__main__":
    folder, *checkpoints = map(Path, sys.argv[1:])
    launched = detect(os.environ)
    assert launched is not None, "started by MPI"
    for case in cases_on(launched.world_size) if checkpoints else FEW:
        run(case, folder)
    if checkpoints:
        run_further(folder, *checkpoints)
