"""Programs whose trained parameters have the same bits on any number of ranks.

Words: a folder for the hashes; names of programs, all without any.
"""

import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer
from torch.utils.data import Dataset, IterableDataset, default_collate

import phalanx

SAMPLES, BATCH, MICRO_BATCHES = 53, 16, 8  # the last global batch has 5 samples


def train(model: nn.Module, optimizer: Optimizer, data: Any, **options: Any) -> None:
    options = {"epochs": 3, "micro_batches": MICRO_BATCHES, **options}
    run = phalanx.start(model, optimizer, data, batch_size=BATCH, bitwise=True, seed=7, **options)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for batch in run:
        outputs = run.model(batch.inputs).flatten(0, -2)
        run.backward(F.cross_entropy(outputs, batch.targets.flatten()))
        if batch.ends_epoch:
            scheduler.step(run.evaluate(error, data) + run.training_loss())


def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def classified(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, *shape), torch.randint(10, (SAMPLES,))


def mlp() -> Mapping[str, Any]:
    """Dropout, momentum and a norm over all ranks."""
    model = nn.Sequential(nn.Linear(20, 33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    train(model, optimizer, classified(20), clip_norm=0.5)
    return state(model, optimizer)


def cnn() -> Mapping[str, Any]:
    """Batch normalization, whose running statistics belong to the result."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 10),
    )
    optimizer = Adam(model.parameters(), lr=0.01)
    train(model, optimizer, classified(1, 8, 8))
    return state(model, optimizer)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(10, 12), nn.LSTM(12, 17, batch_first=True)
        self.head = nn.Linear(17, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


def rnn() -> Mapping[str, Any]:
    model = Recurrent()
    optimizer = AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(10, (SAMPLES, 9))
    train(model, optimizer, (tokens[:, :-1], tokens[:, 1:]))
    return state(model, optimizer)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embedding(tokens), mask=mask, is_causal=True))


def gpt() -> Mapping[str, Any]:
    """Steps that are left out, too."""
    model = Attentive()
    optimizer = AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(10, (SAMPLES, 9))
    train(model, optimizer, (tokens[:, :-1], tokens[:, 1:]), bad_gradients="skip")
    return state(model, optimizer)


def weighted() -> Mapping[str, Any]:
    """Losses count by numbers that no binary fraction is."""
    model = nn.Linear(20, 10)
    optimizer = SGD(model.parameters(), lr=0.3)
    run = phalanx.start(
        model, optimizer, classified(20), batch_size=BATCH, bitwise=True, epochs=3, seed=3
    )
    for batch in run:
        loss = F.cross_entropy(run.model(batch.inputs), batch.targets)
        run.backward(loss, weight=0.1 * (1 + batch.number))
    return state(model, optimizer)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Draws from every generator."""

    def __init__(self) -> None:
        self.inputs, self.targets = classified(20)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(20) * np.random.rand() + random.random()
        return self.inputs[index] + noise, self.targets[index]


def augmented() -> Mapping[str, Any]:
    """A data set that draws random numbers, also when it is evaluated."""
    model = nn.Sequential(nn.Linear(20, 9), nn.Dropout(0.1), nn.Linear(9, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, Augmented(), strategy_options={"overlap": "on"})
    return state(model, optimizer)


def noise(length: int) -> Tensor:
    """Draw from every generator; an odd number of normal ones, which come in pairs."""
    own = [random.gauss(0, 1) + np.random.randn() for _ in range(length)]
    return torch.tensor(own) + torch.rand(length)


class Drawing(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream that draws."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(SAMPLES):
            yield noise(3), torch.tensor(number % 10)


def generated(length: int) -> tuple[Tensor, Tensor]:
    return torch.stack([noise(3) for _ in range(length)]), torch.arange(length) % 10


def collated(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    inputs, targets = default_collate(samples)
    return inputs + noise(3), targets


def drawing() -> Mapping[str, Any]:
    """Streams, functions, their collation, the body of the loop and what is evaluated draw."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        saved = {"checkpoint_dir": folder, "checkpoints": phalanx.Checkpoints(every_steps=2)}
        for data, options in (
            (Drawing(), {"steps": 2, "loading": {"collate_fn": collated}, **saved}),
            (Drawing(), {"steps": 6, "loading": {"collate_fn": collated}, **saved}),
            (Drawing(), {"steps": 6, "loading": {"collate_fn": collated}}),
            (generated, {"steps": 3}),
        ):
            torch.manual_seed(5)
            model, validation = nn.Linear(3, 10), classified(3)
            optimizer = SGD(model.parameters(), lr=0.1)
            options = {"micro_batches": MICRO_BATCHES, "bitwise": True, **options}
            resume = "checkpoint_dir" in options
            run = phalanx.start(
                model, optimizer, data, batch_size=BATCH, resume=resume or None, **options
            )
            for inputs, targets in run:
                run.backward(F.cross_entropy(run.model(inputs + noise(3)), targets))
            loss = run.training_loss()  # of the epoch, also where it was resumed within it
            noisy = run.evaluate(lambda m, x: error(m, (x[0] + noise(3), x[1])), validation)
            run.close()
            found.append({"model": model.state_dict(), "values": torch.tensor([noisy, loss])})
    assert digest(found[1]) == digest(found[2]), "resumed"
    return dict(enumerate(found))


def network() -> nn.Sequential:
    layers = (nn.Linear(20, 33), nn.LayerNorm(33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 10))
    return nn.Sequential(*layers)


def shared() -> Mapping[str, Any]:
    """Parameters once a node, clipped; groups of parameters with options of their own."""
    model = network()
    groups = [
        {"params": model[4].parameters(), "lr": 0.05, "nesterov": True},
        {"params": [*model[0].parameters(), *model[1].parameters()]},
    ]
    optimizer = SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-3)
    train(model, optimizer, classified(20), clip_norm=0.5, strategy="shared")
    return {"model": model.state_dict()}


def zero() -> Mapping[str, Any]:
    """State on one rank each, of other shapes than the parameters; saved and loaded. Some ranks
    have none."""
    data, options = classified(20), {"clip_norm": 0.5, "strategy": "zero", "resume": True}
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 3):
            model = nn.Linear(20, 10)
            optimizer = Adafactor(model.parameters(), lr=0.05)
            train(model, optimizer, data, epochs=epochs, checkpoint_dir=folder, **options)
    return {"model": model.state_dict()}


def state(model: nn.Module, optimizer: Optimizer) -> Mapping[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}


CASES: tuple[Callable[[], Mapping[str, Any]], ...] = (
    *(mlp, cnn, rnn, gpt, weighted, augmented, drawing),
    *(shared, zero),
)


def digest(value: Any) -> str:
    """Return the SHA-256 of all tensors."""
    hashed = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, Tensor):
            hashed.update(item.detach().contiguous().numpy().tobytes())
        elif isinstance(item, Mapping):
            for key in sorted(item, key=str):
                add(item[key])

    add(value)
    return hashed.hexdigest()


def trained(case: Callable[[], Mapping[str, Any]]) -> str:
    torch.manual_seed(5)
    return digest(case())


if __name__ == "__main__":
    wanted = sys.argv[2:]
    found = {
        case.__name__: trained(case) for case in CASES if case.__name__ in wanted or not wanted
    }
    rank = os.environ.get("RANK", "0")
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
