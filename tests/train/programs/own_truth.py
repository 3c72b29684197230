"""Each rank: train models of a user's own by every strategy, and keep the parameters.

Words: a folder for the results; the names of cases, with commas between.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from truth import images, keep_trained, texts

from phalanx.train.config import TrainConfig

OWN = Path(__file__).parents[2] / "models" / "programs" / "own.py"
BATCH, SAMPLES = 7, 29  # the last of five batches has one sample
PLAIN: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.05}
MODELS: dict[str, dict[str, Any]] = {
    "tower": {"model": "tower", "loss": "margins", **PLAIN},
    "transformer": {"model": "transformer", "loss": "entropies"},
    "autoencoder": {"model": "autoencoder", "loss": "squares"},
}
SPLITS: dict[str, dict[str, Any]] = {
    "alone": {},
    "mpi": {"strategy": "mpi"},
    "pieces": {"strategy": "mpi", "accumulate": 3},
    "shared": {"strategy": "shared"},
    "local": {"strategy": "local", "local_steps": 1},
    "server": {"strategy": "server"},
    "zero": {"strategy": "zero", "accumulate": 2},
    "tensor": {"strategy": "tensor"},
    "pipeline": {"strategy": "pipeline", "micro_batches": 3},
}


def config_of(model: str, split: str) -> TrainConfig:
    options = {"dtype": "float64", "epochs": 1, "batch_size": BATCH, "lr_schedule": "constant"}
    options |= MODELS[model] | SPLITS[split]
    for name in ("model", "loss"):
        options[name] = f"{OWN}:{options[name]}"
    if split == "tensor" and model == "tower":
        options["tensor_plan"] = f"{OWN}:tower_plan"
    return TrainConfig.from_options(**options)


def run(model: str, split: str, folder: Path) -> None:
    data = texts(SAMPLES, 5) if model == "transformer" else images(SAMPLES, torch.float64, 5)
    keep_trained(config_of(model, split), data, folder, f"{model}-{split}")


def main(folder: Path, cases: list[str]) -> None:
    for case in cases:
        run(*case.split("-"), folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2].split(","))
