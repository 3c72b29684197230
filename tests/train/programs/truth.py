"""Each rank: train by every case in turn, and keep the parameters.

Words: a folder for the results; a JSON object: for each case its name, and the options of a
training run that differ from their defaults, which are those of one epoch; the number of steps of
each case, fifty without it. "count" has what is sent counted. With `checkpoint_dir` and `resume` a
case goes on from another one.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from phalanx.comm.traffic import COUNT
from phalanx.data.datasets.dataset import load_dataset
from phalanx.jobs.detect import detect
from phalanx.models.options import MNIST_SHAPE, DataShape
from phalanx.parallel.make import RENDEZVOUS
from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    Event,
    MemoryEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import rank_file, read_events
from phalanx.run.agreement import check_together
from phalanx.run.program import ProgramRun
from phalanx.train.agreement import TrainingData
from phalanx.train.config import TrainConfig
from phalanx.train.session import Training

BATCH, STEPS = 30, 50
SAMPLES = (STEPS - 1) * BATCH + 2  # the last batch has fewer samples than four ranks


def images(number: int, dtype: torch.dtype, validation: int) -> TrainingData:
    """Return images at random, and the first of them for validation."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(number, 1, 28, 28, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(10, (number,), generator=generator)
    return data_of(inputs, labels, MNIST_SHAPE, inputs[:validation], labels[:validation])


def data_of(
    inputs: Tensor, targets: Tensor, shape: DataShape, valid_inputs: Tensor, valid_targets: Tensor
) -> TrainingData:
    return TrainingData(
        train=(inputs, targets),
        validation=(valid_inputs, valid_targets),
        shape=shape,
        num_train=len(inputs),
        num_validation=len(valid_inputs),
    )


def texts(number: int, validation: int) -> TrainingData:
    text = load_dataset("text", train_samples=number, validation_samples=validation)
    parts = text.train_inputs, text.train_targets, text.shape
    return data_of(*parts, text.validation_inputs, text.validation_targets)


def totals_of(events: list[Event]) -> Tensor:
    """Return samples, losses and right predictions of a rank in training and in validation."""
    (epoch,) = (e for e in events if isinstance(e, EpochEvent))
    (evaluation,) = (e for e in events if isinstance(e, EvaluationEvent))
    counts = [
        count
        for event in (epoch, evaluation)
        for count in (event.samples, event.loss_sum, event.correct or 0)
    ]
    return torch.tensor(counts, dtype=torch.float64)


def train(config: TrainConfig, data: TrainingData, folder: Path) -> tuple[Training, list[Event]]:
    """Train; return the training, whose run is open, and this rank's records."""
    launched = None if config.strategy == "sequential" else detect(os.environ)
    config = replace(config, ranks=launched.world_size if launched else 1, threads=1)
    training = Training.begin(config, data, folder)
    training.train_epochs()
    training.run.barrier()
    return training, list(read_events(rank_file(folder, training.run.rank)))


def keep_trained(config: TrainConfig, data: TrainingData, folder: Path, name: str) -> None:
    """Train, and keep the whole parameters and the totals of this rank."""
    training, events = train(config, data, folder / name)
    buffers, whole = dict(training.run.model.named_buffers()), training.run.state_dict()
    tensors = {key: tensor.clone() for key, tensor in whole.items() if key not in buffers}
    tensors["totals"] = totals_of(events)
    save_file(tensors, folder / f"{name}-{training.run.rank}.safetensors")
    training.run.close()


def bytes_beside(run: ProgramRun, steps: int) -> Tensor:
    """Bytes sent and received beside the gradients: of a run's first step the check that ranks
    weigh alike, and of each its loss and weight, where no other sum carries them. Collective."""
    strategy, group = run._strategy, run._group
    if not strategy.is_in_lockstep or group.traffic is None:
        return torch.zeros(2)
    before = group.traffic.snapshot()
    check_together(group, False, "")
    checked = group.traffic.snapshot()
    if strategy.sums_gradients and not strategy.sums_losses:
        group.sum([0.0, 0.0])
    once, each = checked - before, group.traffic.snapshot() - checked
    return torch.tensor(
        [
            once.sent_bytes + steps * each.sent_bytes,
            once.received_bytes + steps * each.received_bytes,
        ]
    )


def run(name: str, config: TrainConfig, folder: Path, steps: int) -> None:
    dtype = getattr(torch, config.dtype)
    data = images(SAMPLES - (STEPS - steps) * BATCH, dtype, 101)
    training, events = train(config, data, folder / name)
    rank = training.run.rank
    tensors = {k: v.clone() for k, v in training.run.state_dict().items()}
    (started,) = (e for e in events if isinstance(e, StartedEvent))
    (memory,) = (e for e in events if isinstance(e, MemoryEvent))
    assert started.expected is not None
    kept = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    tensors["kept"] = torch.tensor([kept, started.expected.state_bytes], dtype=torch.float64)
    (trained,) = (e for e in events if isinstance(e, EpochEvent))
    if trained.sent_bytes is not None:
        tensors["moved"] = torch.tensor([trained.sent_bytes, trained.received_bytes])
        theory = [started.expected.sent_bytes, started.expected.received_bytes]
        beside = bytes_beside(training.run, steps)
        tensors["expected"] = steps * torch.tensor(theory, dtype=torch.float64) + beside
        tensors["beside"] = beside
    tensors["staleness"] = torch.tensor([[*pair] for pair in trained.staleness.items()] or [[0, 0]])
    losses = [e.loss_sum for e in events if isinstance(e, StepEvent)] or [0.0] * steps
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    tensors["totals"] = totals_of(events)
    save_file(tensors, folder / f"{name}-{rank}.safetensors")
    training.run.close()


def main(folder: Path, cases: dict[str, dict[str, Any]], steps: int = STEPS) -> None:
    torch.set_num_threads(1)
    meeting = os.environ.get(RENDEZVOUS)
    for name, options in cases.items():
        options = {"epochs": 1, "batch_size": BATCH, **options}
        for key in ("resume", "checkpoint_dir"):
            if key in options:
                options[key] = Path(options[key])
        os.environ[COUNT] = "1" if options.pop("count", False) else "0"
        if meeting:
            os.environ[RENDEZVOUS] = f"{meeting}-{name}"
        run(name, TrainConfig.from_options(**options), folder, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), *map(int, sys.argv[3:]))
