"""On ranks of several nodes: train, and train again from a checkpoint that only rank 0's node has.

argv: a folder that each node has for itself, and the names of cases. Rank 0 prints a line a case.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from phalanx.jobs.detect import Launched, detect
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

MLP: dict[str, Any] = {
    "model": "mlp", "dataset": "digits", "train_samples": 256, "validation_samples": 64,
    "batch_size": 64, "epochs": 2, "threads": 1, "timeout_s": 60, "lr": 0.001,
}  # fmt: skip
GPT = MLP | {
    "model": "gpt", "dataset": "text", "width": 32, "layers": 2, "batch_size": 16,
    "train_samples": 32, "validation_samples": 16,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "mpi": MLP | {"strategy": "mpi"},
    "shared": MLP | {"strategy": "shared"},
    "gloo": MLP | {"strategy": "gloo"},
    "server": MLP | {"strategy": "server"},
    "local": MLP | {"strategy": "local"},
    "zero1": MLP | {"strategy": "zero", "zero_stage": 1},
    "zero2": MLP | {"strategy": "zero", "zero_stage": 2},
    "zero3": MLP | {"strategy": "zero", "zero_stage": 3},
    "tensor": GPT | {"strategy": "tensor"},
    "pipeline": GPT | {"strategy": "pipeline"},
    "mesh": GPT | {"strategy": "mesh", "mesh": "dp=2,tp=2"},
    "topk": MLP | {"strategy": "mpi", "compress": "topk"},
    "int8": MLP | {"strategy": "mpi", "compress": "int8"},
    "powersgd": MLP | {"strategy": "mpi", "compress": "powersgd"},
}


def run(folder: Path, options: dict[str, Any], launched: Launched) -> Path:
    """Train, and return the folder of the checkpoints."""
    saved = folder / "saved"
    config = TrainConfig.from_options(**options, run_dir=folder / "records", checkpoint_dir=saved)
    train(config, launched)
    return saved


def check(name: str, folder: Path, launched: Launched) -> str:
    """Return in words how far the run that resumed is from the other."""
    whole = run(folder / "whole", CASES[name], launched)
    if launched.rank == 0:
        shutil.copytree(whole / "epoch-0001", folder / "first" / "epoch-0001")
    resumed = run(folder / "resumed", CASES[name] | {"resume": folder / "first"}, launched)
    if launched.rank > 0:
        return ""
    distance = 0.0
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, found = (load_file(path / "epoch-0002" / file) for path in (whole, resumed))
        assert expected.keys() == found.keys(), file
        for key, tensor in expected.items():
            assert tensor.shape == found[key].shape, key
            distance = max(distance, float((tensor.double() - found[key].double()).abs().max()))
    return f"{len(list((whole / 'epoch-0002').iterdir()))} files, distance {distance}"


def main() -> None:
    launched = detect(os.environ)
    assert launched is not None
    for name in sys.argv[2:]:
        said = check(name, Path(sys.argv[1]) / name, launched)
        if launched.rank == 0:
            print(f"case {name}: {said}", flush=True)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    main()
