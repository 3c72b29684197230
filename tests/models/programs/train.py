"""Each rank: train the models of text and of images with normalisation, and keep the parameters.

Words: a folder for the results; the strategies, with commas between.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from phalanx.data.datasets.dataset import Dataset, load_dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.launch.detect import detect
from phalanx.models.build import build_model
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.totals import RankTotals
from phalanx.train.config import TrainConfig
from phalanx.train.loop import Training, TrainingContext
from phalanx.train.make_strategy import make_strategy
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import LRSchedule

COUNTED = (
    "samples",
    "targets",
    "validation_targets",
    "loss_sum",
    "correct",
    "validation_loss_sum",
    "validation_correct",
)
BATCH, SAMPLES = 7, 71  # the last of eleven batches has one sample
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt": {"width": 16, "layers": 2, "heads": 2},
    "resnet": {"width": 4, "layers": 1},
}


def samples(model: str) -> Dataset:
    if model == "gpt":
        return load_dataset("text", train_samples=SAMPLES, validation_samples=5)
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(SAMPLES, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (SAMPLES,), generator=generator)
    return Dataset(
        name="digits",
        train_inputs=images,
        train_targets=labels,
        validation_inputs=images[:5],
        validation_targets=labels[:5],
        reason="made here",
    )


def run(model: Any, kind: Any, folder: Path) -> None:
    config = TrainConfig.from_options(model=model, strategy=kind, dtype="float64", **OPTIONS[model])
    strategy = make_strategy(config, None if kind == "sequential" else detect(os.environ))
    dataset = samples(model)
    network = build_model(
        model,
        seed=strategy.rank,
        dtype=torch.float64,
        options=config.model_options,
        shape=dataset.shape,
    )
    strategy.prepare(network, update_rule(config, config.lr))  # gives all the weights of rank 0
    writer = EventWriter(rank_file(folder / f"{model}-{kind}", strategy.rank))
    work = TrainingContext(
        strategy=strategy,
        schedule=LRSchedule(kind="constant", peak=config.lr, num_steps=11),
        source=InMemorySource(dataset),
        global_batch_size=BATCH,
        seed=0,
        writer=writer,
        began_at=time.perf_counter(),
    )
    rows = strategy.group.gather(Training(work).run_epoch().values())
    writer.close()
    tensors = {k: v.detach().clone() for k, v in network.named_parameters()}
    if rows is not None:
        totals = [RankTotals.from_values(row) for row in rows]
        counted = [sum(getattr(rank, name) for rank in totals) for name in COUNTED]
        tensors["totals"] = torch.tensor(counted, dtype=torch.float64)
    save_file(tensors, folder / f"{model}-{kind}-{strategy.rank}.safetensors")
    strategy.group.barrier()
    strategy.close()


def main(folder: Path, strategies: list[str]) -> None:
    for model in OPTIONS:
        for kind in strategies:
            run(model, kind, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2].split(","))
