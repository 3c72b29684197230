"""Trainings whose bits must not depend on the number of ranks, one after the other.

Words: a folder for their records; a checkpoint of `mlp` to resume from.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.jobs.detect import detect
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

SMALL = {"train_samples": 70, "validation_samples": 21, "batch_size": 32, "epochs": 2}
CASES: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"model": "mlp", "width": 16, "clip_norm": 0.5, "label_smoothing": 0.1},
    "cnn": {"model": "cnn", "optimizer": "lars", "lr_schedule": "cosine", "train_samples": 38},
    "rnn": {"model": "rnn", "optimizer": "lamb", "train_samples": 38, "warmup_epochs": 0.5},
    "gpt": {
        "model": "gpt", "dataset": "text", "width": 16, "layers": 1, "heads": 2, "batch_size": 12,
        "train_samples": 40, "validation_samples": 9, "bad_gradients": "skip",
        "autocast": "bf16",
    },
    "resnet": {"model": "resnet", "width": 4, "train_samples": 38, "epochs": 1},
    "skipped": {
        "model": "mlp", "width": 16, "lr": 1e38, "bad_gradients": "skip", "optimizer": "sgd",
        "epochs": 1,
    },
}  # fmt: skip

FURTHER = {
    "mpi": ("gpt",), "shared": ("mlp", "cnn", "gpt"), "zero": ("cnn", "rnn", "skipped")
}  # fmt: skip
"""Cases of overlap, and of the strategies that divide the optimizer's state."""
LINKED = {"mpi": ("mlp", "skipped"), "shared": ("mlp",), "zero": ("mlp", "skipped")}
"""Cases over messages."""
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "mpi": {"strategy": "mpi", "overlap": "on"},
    "shared": {"strategy": "shared"},
    "zero": {"strategy": "zero", "zero_stage": 2},
}


def run(name: str, folder: Path, **options: Any) -> None:
    launched = detect(os.environ)
    strategy = "mpi" if launched and launched.world_size > 1 else "sequential"
    given = {"strategy": strategy, "dataset": "digits", **SMALL, **CASES[name], **options}
    config = TrainConfig.from_options(bitwise=True, run_dir=folder / name, **given)
    train(config, launched)


if __name__ == "__main__":
    folder, checkpoint = map(Path, sys.argv[1:3])
    for case in CASES:
        run(case, folder)
    run("mlp", folder / "resumed", resume=checkpoint)
    for strategy, names in FURTHER.items():
        for case in names:
            run(case, folder / strategy, **STRATEGIES[strategy])
    os.environ["PHALANX_LINK"] = "10Gbit/s"  # no rank shares memory with another
    for strategy, names in LINKED.items():
        for case in names:
            run(case, folder / "linked" / strategy, **STRATEGIES[strategy])
    del os.environ["PHALANX_LINK"]
    saved = folder / "checkpoints"
    run("mlp", folder / "saved", **STRATEGIES["zero"], checkpoint_dir=saved, checkpoint_steps=2)
    checkpoint = saved / checkpoint.name
    run("mlp", folder / "resumed" / "shared", **STRATEGIES["shared"], resume=checkpoint)
