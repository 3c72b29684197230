"""Each rank: train the models of text and of images with normalisation, and keep the parameters.

Words: a folder for the results; the strategies, with commas between.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "train" / "programs"))

import torch
from truth import images, keep_trained, texts

from phalanx.train.config import TrainConfig

BATCH, SAMPLES = 7, 71  # the last of eleven batches has one sample
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt": {"width": 16, "layers": 2, "heads": 2},
    "resnet": {"width": 4, "layers": 1},
}


def run(model: Any, kind: Any, folder: Path) -> None:
    config = TrainConfig.from_options(
        model=model, strategy=kind, dtype="float64", epochs=1, batch_size=BATCH,
        lr_schedule="constant", **OPTIONS[model],
    )  # fmt: skip
    data = texts(SAMPLES, 5) if model == "gpt" else images(SAMPLES, torch.float64, 5)
    keep_trained(config, data, folder, f"{model}-{kind}")


def main(folder: Path, strategies: list[str]) -> None:
    for model in OPTIONS:
        for kind in strategies:
            run(model, kind, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2].split(","))
