"""Programs on `phalanx.start`, on any number of ranks, each of which saves its parameters.

Words: a folder for the results; names of programs, all without any.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import Dataset

import phalanx
from phalanx.data.packed.index import Field
from phalanx.data.packed.writer import PackWriter

SAMPLES, BATCH = 53, 16  # the last global batch has 5 samples
EPOCHS, STEPS = 4, 14  # it ends within the last epoch


def classification() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,))


def dropout() -> nn.Module:
    """Random numbers belong to micro-batches, gradients are clipped, results are evaluated."""
    data = classification()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    run = phalanx.start(
        model,
        optimizer,
        data,
        batch_size=BATCH,
        micro_batches=6,
        epochs=EPOCHS,
        steps=STEPS,
        clip_norm=0.5,
        seed=7,
    )
    seen, scores = 0, []
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        seen += batch.num_samples
        if batch.ends_epoch:
            scores.append(run.evaluate(error_and_size, data))
            assert run.reduce(seen) == min(SAMPLES * (batch.epoch + 1), 3 * SAMPLES + 2 * BATCH)
    assert all(score["size"] == scores[0]["size"] for score in scores)
    model.register_buffer("scores", torch.tensor([score["error"] for score in scores]))
    return model


def error_and_size(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"error": F.cross_entropy(model(inputs), targets), "size": inputs.norm(dim=1).mean()}


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Of uneven length, padded by 0: a loss is a mean over tokens."""

    def __init__(self) -> None:
        self._lengths = torch.randint(1, 9, (SAMPLES,)).tolist()
        self._tokens = torch.randint(1, 11, (SAMPLES, 9))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        tokens = self._tokens[number].clone()
        tokens[self._lengths[number] + 1 :] = 0
        return tokens[:-1], tokens[1:]


class Language(nn.Module):
    """With tied weights, a frozen layer, and a layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 2)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.frozen(self.embedding(tokens))))
        return logits


def weights() -> nn.Module:
    """A micro-batch counts by its tokens; parameters have groups of their own."""
    model = Language()
    optimizer = AdamW(
        [
            {"params": model.embedding.parameters(), "lr": 0.01},
            {"params": model.unused.parameters(), "weight_decay": 0.0},
        ]
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    run = phalanx.start(model, optimizer, Sentences(), batch_size=BATCH, epochs=EPOCHS, steps=STEPS)
    losses = []
    for batch in run:
        logits = run.model(batch.inputs)
        num_tokens = int((batch.targets > 0).sum())
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=0, reduction="sum"
        )
        run.backward(loss / max(1, num_tokens), weight=num_tokens)
        if batch.ends_step:
            schedule.step()
            losses.append(run.step_loss)
    model.register_buffer("scores", torch.tensor(losses))
    return model


def shared() -> nn.Module:
    """One copy of parameters and state a node, where there are ranks; the rate of a scheduler."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    data = classification()
    run = phalanx.start(
        model,
        optimizer,
        data,
        batch_size=BATCH,
        epochs=EPOCHS,
        steps=STEPS,
        strategy="shared",
    )
    losses = []
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        if batch.ends_step:
            schedule.step()
            losses.append(run.step_loss)
        if batch.ends_epoch:  # fewer samples than ranks
            score = run.evaluate(error_and_size, (data[0][:1], data[1][:1]))
    model.register_buffer("scores", torch.tensor([*losses, score["error"]]))
    return model


def forces() -> nn.Module:
    """Energies and their derivatives by positions: the loss differentiates twice."""
    positions = torch.randn(SAMPLES, 5, 3)
    energies = (1 / distances_of(positions)).sum((1, 2))
    model = nn.Sequential(nn.Linear(25, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = Adam(model.parameters(), lr=1e-3)
    run = phalanx.start(
        model, optimizer, (positions, energies), batch_size=BATCH, epochs=EPOCHS, steps=STEPS
    )
    for batch in run:
        places = batch.inputs.clone().requires_grad_(True)
        energy = run.model(distances_of(places).flatten(1)).squeeze(1)
        (force,) = torch.autograd.grad(energy.sum(), places, create_graph=True)
        run.backward(F.mse_loss(energy, batch.targets) + 0.1 * force.square().mean())
    return model


class Adversaries(nn.Module):
    """Two networks, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def adversaries(overlap: Literal["on", "off"] = "off") -> nn.Module:
    """Each loss reaches both networks, and is differentiated by one; both step together."""
    data = torch.randn(SAMPLES, 6)
    model = Adversaries()
    optimizers = {
        "generator": SGD(model.generator.parameters(), lr=0.05, momentum=0.9),
        "critic": Adam(model.critic.parameters(), lr=0.01),
    }
    run = phalanx.start(
        model,
        optimizers,
        data,
        batch_size=BATCH,
        micro_batches=7,
        epochs=EPOCHS,
        steps=STEPS,
        clip_norm=0.3,
        strategy_options={"overlap": overlap},
    )
    for batch in run:
        made = model.generator(torch.randn(len(batch.data), 4))
        real, fake = model.critic(batch.data), model.critic(made)
        run.backward(F.softplus(fake).mean() + F.softplus(-real).mean(), optimizer="critic")
        run.backward(F.softplus(-fake).mean(), optimizer="generator")
    return model


def alternating() -> nn.Module:
    """Two steps of the critic for each of the generator, whose rate changes with its own."""
    data = torch.randn(SAMPLES, 6)
    model = Adversaries()
    optimizers = {
        "generator": AdamW(model.generator.parameters(), lr=0.05, weight_decay=0.1),
        "critic": SGD(model.critic.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
    }
    run = phalanx.start(
        model,
        optimizers,
        data,
        batch_size=BATCH,
        epochs=EPOCHS,
        steps=STEPS,
        clip_norm=0.3,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizers["generator"], 5, 0.5),
        alternate=("critic", "critic", "generator"),
    )
    for batch in run:
        assert batch.optimizer == ("generator" if batch.step % 3 == 2 else "critic")
        made = model.generator(batch.data[:, :4])
        fake = model.critic(made)
        loss = F.softplus(-fake).mean()
        if batch.optimizer == "critic":
            loss = F.softplus(fake).mean() + F.softplus(-model.critic(batch.data)).mean()
        before = [p.clone() for p in model.parameters()]
        run.backward(loss, optimizer=batch.optimizer)
        changed = [not p.equal(old) for p, old in zip(model.parameters(), before, strict=True)]
        is_generator = batch.optimizer == "generator"
        assert changed == [is_generator] * 4 + [not is_generator] * 4
    return model


def with_strategy(
    strategy: str, kind: type[Optimizer], options: dict[str, float], **given: Any
) -> Callable[[], nn.Module]:
    """A program whose ranks train by `strategy`, with weights of its own in every second step."""

    def train() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        run = phalanx.start(
            model,
            kind(model.parameters(), **options),
            classification(),
            batch_size=BATCH,
            micro_batches=5,
            epochs=EPOCHS,
            steps=STEPS,
            strategy=strategy,
            **given,
        )
        for batch in run:
            loss = F.cross_entropy(run.model(batch.inputs), batch.targets)
            run.backward(loss, weight=(1 + batch.number) ** 2 if batch.step % 2 else None)
        return model

    return train


class Spectrum(nn.Module):
    """Complex and real parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8, dtype=torch.complex128))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head((inputs.to(torch.complex128) @ self.weight).abs())
        return outputs


def spectrum() -> nn.Module:
    return train_on(classification(), epochs=EPOCHS, model=Spectrum())


def batch_norm() -> nn.Module:
    """What is normalised together depends on micro-batches alone; so does the mean of all their
    statistics, where each rank computes as many."""
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=None), nn.Tanh(), nn.Linear(16, 3)
    )
    data = torch.randn(72, 6), torch.randint(3, (72,))
    return train_on(data, epochs=EPOCHS, batch_size=36, micro_batches=12, model=model)


def synchronized() -> nn.Module:
    """Statistics of the global batch on all ranks, also of those that have no sample of it."""
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16, eps=0.1), nn.Tanh(), nn.Linear(16, 3)]
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(*layers))
    data = torch.randn(50, 6), torch.randint(3, (50,))
    return train_on(data, epochs=EPOCHS, micro_batches=None, model=model)


class Towers(nn.Module):
    """Two encoders whose outputs for a sample are to be alike, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.bottom = nn.Linear(4, 8), nn.Linear(4, 8)
        self.heads = nn.Module()
        self.heads.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        top, bottom = inputs.split(4, 1)
        return F.normalize(self.top(top)), F.normalize(self.bottom(bottom))


def contrastive(**options: Any) -> Callable[[], nn.Module]:
    """A program whose losses look at all samples of the global batch, the last with fewer samples
    than ranks; each has an optimizer, and parameters beyond the rows that it gathers."""

    def train() -> nn.Module:
        data = torch.randn(50, 8), torch.randint(3, (50,))
        model = Towers()
        optimizers = {
            "towers": Adam([*model.top.parameters(), *model.bottom.parameters()], lr=0.01),
            "heads": SGD(model.heads.parameters(), lr=0.1, momentum=0.9),
        }
        run = phalanx.start(
            model, optimizers, data, batch_size=BATCH, epochs=EPOCHS, steps=STEPS, clip_norm=0.3,
            **options,
        )  # fmt: skip
        for batch in run:
            top, bottom = map(run.gather, run.model(batch.inputs))
            labels = run.gather(batch.targets)
            assert len(labels) == batch.global_samples
            scores = model.heads.scale.exp() * top @ bottom.T
            alike = (labels.unsqueeze(1) == labels).to(scores.dtype)
            pairs = F.cross_entropy(scores, torch.arange(len(top)))
            weight = None if batch.step % 3 else 1 + batch.number
            run.backward(pairs, optimizer="towers", weight=weight)
            loss = F.binary_cross_entropy_with_logits(scores, alike)
            run.backward(loss, optimizer="heads", weight=weight)
        return model

    return train


class Stream:
    """An iterable without a length, which draws."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(SAMPLES):
            yield torch.randn(6) + number / SAMPLES, torch.randint(3, ())


def stream() -> nn.Module:
    return train_on(Stream(), epochs=EPOCHS)


def on_policy() -> nn.Module:
    """Samples of a stream that the model makes, as it is after the last update."""
    model = nn.Linear(3, 3)

    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            with torch.no_grad():
                state = torch.randn(3)
                answer = model(state).softmax(0)
            yield state, answer

    return train_on(samples(), model)


def generated() -> nn.Module:
    return train_on(lambda n: (torch.randn(n, 6), torch.randint(3, (n,))))


def sharded() -> nn.Module:
    """Each rank reads its own two or more micro-batches of a step, of uneven length."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    lengths = [2, 1, 4, 3, 1, 2]
    steps = [
        [(torch.randn(n, 6), torch.randint(3, (n,))) for n in lengths] for _ in range(STEPS // 2)
    ]
    own = range(rank * len(lengths) // size, (rank + 1) * len(lengths) // size)
    batches = [step[number] for step in steps for number in own]
    return train_on(batches, epochs=2, sharded=True, micro_batches=len(lengths))


def train_on(data: object, model: nn.Module | None = None, **options: Any) -> nn.Module:
    model = model or nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"batch_size": BATCH, "micro_batches": 5, "steps": STEPS, **options}
    run = phalanx.start(model, optimizer, data, **options)
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
    return model


def distances_of(positions: Tensor) -> Tensor:
    """Return the distances between points, (n, 5, 5), 1 of a point to itself."""
    differences = positions.unsqueeze(1) - positions.unsqueeze(2)
    return (differences.square().sum(3) + torch.eye(5)).sqrt()


def packed() -> nn.Module:
    """Two inputs and a quantity from a pack, read ahead by a thread."""
    fields = [Field(name=name, dtype="float64", shape=shape) for name, shape in PARTS.items()]
    rows = {name: torch.randn(SAMPLES, *shape).numpy() for name, shape in PARTS.items()}
    model = nn.Linear(6, 1)
    optimizer = SGD(model.parameters(), lr=0.05)
    with TemporaryDirectory() as folder:
        for split in ("train", "validation"):
            with PackWriter(Path(folder, split), fields=fields) as writer:
                writer.add_rows(rows)
        run = phalanx.start(
            model, optimizer, folder, batch_size=BATCH, epochs=EPOCHS, steps=STEPS,
            loading={"num_workers": 1},
        )  # fmt: skip
        for batch in run:
            run.backward(squared_error(run.model, batch.data))
            if batch.ends_epoch:
                score = run.evaluate(squared_error, folder)
    model.register_buffer("scores", torch.tensor([score]))
    return model


PARTS = {"places": [2, 2], "charges": [2], "targets": []}


def squared_error(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    features = torch.cat([batch["places"].flatten(1), batch["charges"]], 1)
    return F.mse_loss(model(features).squeeze(1), batch["targets"])


CASES: dict[str, Callable[[], nn.Module]] = {
    "dropout": dropout, "weights": weights, "shared": shared, "forces": forces,
    "adversaries": adversaries, "overlapping": lambda: adversaries("on"),
    "alternating": alternating, "packed": packed,
    "stream": stream, "on_policy": on_policy, "generated": generated, "sharded": sharded,
    "spectrum": spectrum, "batch_norm": batch_norm, "synchronized": synchronized,
    "contrastive": contrastive(),
    "contrastive_overlap": contrastive(strategy_options={"overlap": "on"}),
    "overlap": with_strategy("mpi", AdamW, {"lr": 0.01}, strategy_options={"overlap": "on"}),
    "gloo": with_strategy("gloo", SGD, {"lr": 0.1, "momentum": 0.9}),
    "zero": with_strategy("zero", Adam, {"lr": 0.01}),
    "local": with_strategy("local", SGD, {"lr": 0.1}, strategy_options={"local_steps": 1}),
}  # fmt: skip


def trained(name: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        return {key: value.clone() for key, value in CASES[name]().state_dict().items()}
    finally:
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results = {name: trained(name) for name in sys.argv[2:] or CASES}
    rank = os.environ["RANK"]
    torch.save(results, folder / f"{rank}.pt")
