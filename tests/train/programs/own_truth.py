"""Each rank: train models of a user's own by every strategy, and keep the parameters.

Words: a folder for the results; the names of cases, with commas between.
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
from phalanx.parallel.local_shards import full_tensor
from phalanx.records.files import EventWriter, rank_file
from phalanx.train.config import TrainConfig
from phalanx.train.loop import Training, TrainingContext
from phalanx.train.make_strategy import make_strategy
from phalanx.train.optimizer import update_rule
from phalanx.train.own_model import make_loss
from phalanx.train.schedule import LRSchedule

OWN = Path(__file__).parents[2] / "models" / "programs" / "own.py"
BATCH, SAMPLES = 7, 71  # the last of eleven batches has one sample
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


def samples(model: str) -> Dataset:
    if model == "transformer":
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


def config_of(model: str, split: str) -> TrainConfig:
    options = {"dtype": "float64", **MODELS[model], **SPLITS[split]}
    for name in ("model", "loss"):
        options[name] = f"{OWN}:{options[name]}"
    if split == "tensor" and model == "tower":
        options["tensor_plan"] = f"{OWN}:tower_plan"
    return TrainConfig.from_options(**options)


def run(model: str, split: str, folder: Path) -> None:
    config, dataset = config_of(model, split), samples(model)
    strategy = make_strategy(config, None if split == "alone" else detect(os.environ))
    network = build_model(
        config.model, seed=strategy.rank, dtype=torch.float64, shape=dataset.shape
    )
    strategy.loss = make_loss(config, network, dataset.shape)
    strategy.data_shape = dataset.shape
    strategy.prepare(network, update_rule(config, config.lr))  # gives all the weights of rank 0
    writer = EventWriter(rank_file(folder / f"{model}-{split}", strategy.rank))
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
    names = strategy.model.named_parameters()
    tensors = {name: full_tensor(parameter).clone() for name, parameter in names}
    if rows is not None:
        tensors["totals"] = torch.tensor(rows, dtype=torch.float64).sum(0)[2:9]
    save_file(tensors, folder / f"{model}-{split}-{strategy.rank}.safetensors")
    strategy.group.barrier()
    strategy.close()


def main(folder: Path, cases: list[str]) -> None:
    for case in cases:
        run(*case.split("-"), folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2].split(","))
