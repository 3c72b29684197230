"""Each rank: train every model for fifty steps by one strategy and keep the parameters.

Words: strategy, dtype, folder for the results, optimizer (then the MLP only).
"""

import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from phalanx.data.dataset import Dataset
from phalanx.launch.detect import detect
from phalanx.models.build import build_model
from phalanx.records.files import EventWriter, rank_file, read_events
from phalanx.records.schema import Step
from phalanx.train.config import TrainConfig
from phalanx.train.join import RENDEZVOUS, join
from phalanx.train.loop import Work, run_epoch
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import Schedule

BATCH = 30
SAMPLES = 49 * BATCH + 2  # fifty steps, of which the last has fewer samples than four ranks


def samples(dtype: torch.dtype) -> Dataset:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(SAMPLES, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (SAMPLES,), generator=generator)
    return Dataset(
        name="digits",
        train_inputs=images.to(dtype),
        train_targets=labels,
        validation_inputs=images[:101].to(dtype),
        validation_targets=labels[:101],
        reason="made here",
    )


def run(config: TrainConfig, folder: Path) -> None:
    dtype = getattr(torch, config.dtype)
    launched = None if config.strategy == "sequential" else detect(os.environ)
    strategy = join(config, launched)
    model = build_model(config.model, seed=config.seed + strategy.rank, dtype=dtype)
    records = folder / f"{config.model}"
    strategy.prepare(model, update_rule(config, config.lr))  # gives all the weights of rank 0
    writer = EventWriter(rank_file(records, strategy.rank))
    work = Work(
        strategy=strategy,
        schedule=Schedule(kind=config.lr_schedule, peak=config.lr, num_steps=50),
        dataset=samples(dtype),
        global_batch_size=BATCH,
        seed=config.seed,
        writer=writer,
        began_at=time.perf_counter(),
    )
    totals = strategy.gather(run_epoch(work, 0).values())
    writer.close()
    losses = [
        e.loss_sum for e in read_events(rank_file(records, strategy.rank)) if isinstance(e, Step)
    ]
    rows = strategy.gather(losses)
    tensors = {k: v.detach().clone() for k, v in model.named_parameters()}
    if rows is not None:
        tensors["losses"] = torch.tensor(rows, dtype=torch.float64).sum(0)
        tensors["totals"] = torch.tensor(totals, dtype=torch.float64)
    save_file(tensors, folder / f"{config.model}-{strategy.rank}.safetensors")
    strategy.barrier()
    strategy.close()


def main(name: str, dtype: str, folder: Path, optimizer: str | None = None) -> None:
    torch.set_num_threads(1)
    meeting = os.environ.get(RENDEZVOUS)
    for model in ("mlp",) if optimizer else ("mlp", "cnn", "rnn"):
        if meeting:
            os.environ[RENDEZVOUS] = f"{meeting}-{model}"
        config = TrainConfig(
            model=model,
            strategy=name,
            dtype=dtype,
            optimizer=optimizer or "adam",
            weight_decay=0.01 if optimizer else 0.0,
        )
        run(config, folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
