"""Each rank: train by every case in turn, and keep the parameters.

Words: a folder for the results; a JSON object: for each case its name, and the options of a
training run that differ from their defaults, which are those of one epoch; the number of steps of
each case, fifty without it. "count" has what is sent counted. With `checkpoint_dir` and `resume` a
case goes on from another one.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from phalanx.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from phalanx.checkpoints.manifest import Manifest
from phalanx.comm.traffic import COUNT
from phalanx.data.datasets.dataset import Dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.launch.detect import detect
from phalanx.models.build import build_model
from phalanx.parallel.make import RENDEZVOUS
from phalanx.records.events import EpochEvent, MemoryEvent, StepEvent
from phalanx.records.files import EventWriter, rank_file, read_events
from phalanx.train.config import TrainConfig
from phalanx.train.loop import Training, TrainingContext
from phalanx.train.make_strategy import make_strategy
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import LRSchedule

BATCH, STEPS = 30, 50
SAMPLES = (STEPS - 1) * BATCH + 2  # the last batch has fewer samples than four ranks


def samples(dtype: torch.dtype, steps: int = STEPS) -> Dataset:
    size = SAMPLES - (STEPS - steps) * BATCH
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(size, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (size,), generator=generator)
    return Dataset(
        name="digits",
        train_inputs=images.to(dtype),
        train_targets=labels,
        validation_inputs=images[:101].to(dtype),
        validation_targets=labels[:101],
        reason="made here",
    )


def manifest(config: TrainConfig, epochs_done: int) -> Manifest:
    return Manifest(
        phalanx="0",
        model=config.model,
        dtype=config.dtype,
        optimizer=config.optimizer,
        dataset="made here",
        seed=config.seed,
        global_batch_size=BATCH,
        epochs_done=epochs_done,
    )


def run(name: str, config: TrainConfig, folder: Path, steps: int) -> None:
    dtype = getattr(torch, config.dtype)
    launched = None if config.strategy == "sequential" else detect(os.environ)
    strategy = make_strategy(config, launched)
    model = build_model(config.model, seed=config.seed + strategy.rank, dtype=dtype)
    strategy.prepare(model, update_rule(config, config.lr))  # gives all the weights of rank 0
    epoch = 0
    if config.resume is not None:
        epoch = load_checkpoint(config.resume, strategy.model, strategy.optimizer).epochs_done
    writer = EventWriter(rank_file(folder / name, strategy.rank))
    work = TrainingContext(
        strategy=strategy,
        schedule=LRSchedule(kind=config.lr_schedule, peak=config.lr, num_steps=2 * steps),
        source=InMemorySource(samples(dtype, steps)),
        global_batch_size=BATCH,
        seed=config.seed,
        writer=writer,
        began_at=time.perf_counter(),
        first_epoch=epoch,
    )
    totals = strategy.group.gather(Training(work).run_epoch().values())
    writer.close()
    if config.checkpoint_dir is not None and strategy.rank == 0:
        seal = manifest(config, epoch + 1)
        save_checkpoint(config.checkpoint_dir, strategy.model, strategy.optimizer, seal)
    strategy.group.barrier()
    events = list(read_events(rank_file(folder / name, strategy.rank)))
    losses = [e.loss_sum for e in events if isinstance(e, StepEvent)] or [0.0] * steps
    rows = strategy.group.gather(losses)
    tensors = {k: v.detach().clone() for k, v in model.named_parameters()}
    theory = strategy.expected(BATCH)
    (memory,) = (e for e in events if isinstance(e, MemoryEvent))
    kept = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    tensors["kept"] = torch.tensor([kept, theory.state_bytes], dtype=torch.float64)
    (trained,) = (e for e in events if isinstance(e, EpochEvent))
    if trained.sent_bytes is not None:
        tensors["moved"] = torch.tensor([trained.sent_bytes, trained.received_bytes])
        a_step = torch.tensor([theory.sent_bytes, theory.received_bytes], dtype=torch.float64)
        tensors["expected"] = steps * a_step
    tensors["staleness"] = torch.tensor([[*pair] for pair in trained.staleness.items()] or [[0, 0]])
    if rows is not None:
        tensors["losses"] = torch.tensor(rows, dtype=torch.float64).sum(0)
        tensors["totals"] = torch.tensor(totals, dtype=torch.float64)
    save_file(tensors, folder / f"{name}-{strategy.rank}.safetensors")
    strategy.group.barrier()
    strategy.close()


def main(folder: Path, cases: dict[str, dict[str, Any]], steps: int = STEPS) -> None:
    torch.set_num_threads(1)
    meeting = os.environ.get(RENDEZVOUS)
    for name, options in cases.items():
        options = dict(options)
        for key in ("resume", "checkpoint_dir"):
            if key in options:
                options[key] = Path(options[key])
        os.environ[COUNT] = "1" if options.pop("count", False) else "0"
        if meeting:
            os.environ[RENDEZVOUS] = f"{meeting}-{name}"
        run(name, TrainConfig.from_options(**options), folder, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), *map(int, sys.argv[3:]))
