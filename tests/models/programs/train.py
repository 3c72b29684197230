"""Each rank: train the models of text and of images with normalisation, and keep the parameters.

Words: a folder for the results; the strategies, with commas between.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "train" / "programs"))

import torch
from safetensors.torch import save_file
from truth import data_of, images, totals_of, train

from phalanx.data.datasets.dataset import load_dataset
from phalanx.train.agreement import TrainingData
from phalanx.train.config import TrainConfig

BATCH, SAMPLES = 7, 71  # the last of eleven batches has one sample
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt": {"width": 16, "layers": 2, "heads": 2},
    "resnet": {"width": 4, "layers": 1},
}


def samples(model: str) -> TrainingData:
    if model != "gpt":
        return images(SAMPLES, torch.float64, 5)
    text = load_dataset("text", train_samples=SAMPLES, validation_samples=5)
    parts = text.train_inputs, text.train_targets, text.shape
    return data_of(*parts, text.validation_inputs, text.validation_targets)


def run(model: Any, kind: Any, folder: Path) -> None:
    config = TrainConfig.from_options(
        model=model, strategy=kind, dtype="float64", epochs=1, batch_size=BATCH,
        lr_schedule="constant", **OPTIONS[model],
    )  # fmt: skip
    training, events = train(config, samples(model), folder / f"{model}-{kind}")
    tensors = {name: tensor.clone() for name, tensor in training.run.model.named_parameters()}
    tensors["totals"] = totals_of(events)
    save_file(tensors, folder / f"{model}-{kind}-{training.run.rank}.safetensors")
    training.run.close()


def main(folder: Path, strategies: list[str]) -> None:
    for model in OPTIONS:
        for kind in strategies:
            run(model, kind, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2].split(","))
