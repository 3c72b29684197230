"""Programs that save and resume: `checkpoints.py FOLDER NAME '{"options": …}'`; every rank saves
its results as `FOLDER/NAME-RANK.pt`."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import IterableDataset

import phalanx

SAMPLES, BATCH, STEPS = 53, 16, 50  # the last of 4 global batches of an epoch has 5 samples


def averaged(**options: Any) -> dict[str, Any]:
    """Dropout, a schedule, and averaged parameters that the program keeps itself."""
    data = torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,))
    model = nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 3)
    )
    model[2].requires_grad_(False)
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    schedule = StepLR(optimizer, 7, 0.8)
    run = phalanx.start(
        model, optimizer, data, batch_size=BATCH, micro_batches=6, epochs=13,
        scheduler=schedule, seed=7, **{"steps": STEPS, **options},
    )  # fmt: skip
    average = run.state.setdefault("average", {n: p.clone() for n, p in model.state_dict().items()})
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
        if batch.ends_step:
            run.state["updates"] = run.state.get("updates", 0) + 1
            for name, value in model.state_dict().items():
                average[name] += ((value - average[name]) * 0.1).to(value.dtype)
    assert run.state["updates"] == schedule.last_epoch
    return {
        "updates": run.state["updates"], "lr": schedule.get_last_lr(),
        **average, **{f"model.{name}": value for name, value in model.state_dict().items()},
    }  # fmt: skip


def adversaries(**options: Any) -> dict[str, Any]:
    """Two optimizers with a loss each, of other kinds."""
    data = torch.randn(SAMPLES, 2) + 3
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)),
            "critic": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
    )
    optimizers: dict[str, Optimizer] = {
        "g": Adam(model["generator"].parameters(), lr=0.01),
        "c": SGD(model["critic"].parameters(), lr=0.05, momentum=0.5),
    }
    run = phalanx.start(
        model, optimizers, data, batch_size=BATCH, micro_batches=5, epochs=13,
        **{"steps": STEPS, **options},
    )  # fmt: skip
    for batch in run:
        made = run.model["generator"](torch.randn(len(batch.inputs), 3))
        critic = run.model["critic"]
        run.backward(critic(made.detach()).mean() - critic(batch.inputs).mean(), optimizer="c")
        run.backward(-critic(made).mean(), optimizer="g")
    return dict(model.state_dict())


def stream(**options: Any) -> dict[str, Any]:
    """Samples without numbers, which are read anew up to where the run stood."""
    rows = torch.randn(SAMPLES, 3)
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = phalanx.start(
        model, optimizer, Rows(rows), batch_size=BATCH, epochs=13, **{"steps": STEPS, **options}
    )
    for batch in run:
        run.backward(run.model(batch.data).square().mean())
    return {"loss": [run.training_loss()], **model.state_dict()}


class Rows(IterableDataset[Tensor]):
    """In an order that depends on PyTorch's generator."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._rows[torch.randperm(len(self._rows))])


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "averaged": averaged, "adversaries": adversaries, "stream": stream,
}  # fmt: skip


def results(case: str, **options: Any) -> dict[str, Any]:
    """every_steps: after which a checkpoint is written; others: as of `phalanx.start`."""
    if "every_steps" in options:
        options["checkpoints"] = phalanx.Checkpoints(every_steps=options.pop("every_steps"))
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        found = CASES[case](**options)
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in found.items()}
    finally:
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    for name, (case, options) in runs.items():
        torch.save(results(case, **options), folder / f"{name}-{os.environ['RANK']}.pt")
