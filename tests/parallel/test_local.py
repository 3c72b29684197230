"""Local steps and their meetings, held to a simulation of all ranks in one process."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from phalanx.comm.layout import share_of
from phalanx.data.sampler import epoch_order
from phalanx.models.build import build_model
from phalanx.train.schedule import LRSchedule
from tests.conftest import Ranks

PROGRAM = Path(__file__).parents[1] / "train" / "programs" / "truth.py"
PERIOD = 4  # fifty steps are twelve periods and two steps

CASES: dict[str, dict[str, Any]] = {
    "average": {"count": True},
    "nesterov": {"outer_optimizer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9},
    "sgd": {"optimizer": "sgd", "accumulate": 2},
}


def program() -> Any:
    spec = importlib.util.spec_from_file_location("truth", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Simulated:
    """One rank's model, optimizer and batches."""

    def __init__(self, rank: int, ranks: int, kind: str) -> None:
        self.model: nn.Module = build_model("mlp", seed=0, dtype=torch.float64)
        parameters = list(self.model.parameters())
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, momentum=0.9)
            if kind == "sgd"
            else torch.optim.Adam(parameters)
        )
        truth = program()
        self.data, self.targets = truth.images(truth.SAMPLES, torch.float64, 101), 0
        order = epoch_order(truth.SAMPLES, 0, 0)
        shares = [share_of(rank, ranks, len(whole)) for whole in order.split(truth.BATCH)]
        self.batches = iter(
            whole[share.start : share.stop]
            for whole, share in zip(order.split(truth.BATCH), shares, strict=True)
        )

    def step(self, rate: float) -> None:
        indices = next(self.batches)
        if not len(indices):
            return
        self.targets += len(indices)
        self.optimizer.zero_grad()
        inputs, targets = self.data.train
        cross_entropy(self.model(inputs[indices]), targets[indices]).backward()
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()

    def values(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def take(self, values: Tensor) -> None:
        nn.utils.vector_to_parameters(values.clone(), self.model.parameters())


def simulate(count: int, options: dict[str, Any]) -> dict[str, Tensor]:
    ranks = [Simulated(rank, count, options.get("optimizer", "adam")) for rank in range(count)]
    schedule = LRSchedule(kind="cosine", peak=1e-3, num_steps=50)
    shared, momentum = ranks[0].values(), torch.tensor(0.0)
    is_nesterov = "outer_lr" in options
    for step in range(50):
        for rank in ranks:
            rank.step(schedule.at(step))
        if (step + 1) % PERIOD and step < 49:
            continue
        targets = sum(rank.targets for rank in ranks)
        mean = torch.stack([rank.values() * (rank.targets / targets) for rank in ranks]).sum(0)
        if is_nesterov:
            outer = shared - mean
            momentum = options["outer_momentum"] * momentum + outer
            shared = shared - options["outer_lr"] * (outer + options["outer_momentum"] * momentum)
        else:
            shared = mean
        for rank in ranks:
            rank.take(shared)
            rank.targets = 0
    return {name: value.detach() for name, value in ranks[0].model.named_parameters()}


@pytest.mark.mpi
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, 3])
def test_meetings_are_those_of_a_simulation(ranks: Ranks, tmp_path: Path, count: int) -> None:
    common = {"strategy": "local", "local_steps": PERIOD, "dtype": "float64"}
    cases = {name: {**common, **options} for name, options in CASES.items()}
    ranks.mpi(count, PROGRAM, str(tmp_path), json.dumps(cases), timeout_s=200)
    for name, options in CASES.items():
        expected = simulate(count, options)
        for rank in range(count):
            found = load_file(tmp_path / f"{name}-{rank}.safetensors")
            for key, value in expected.items():
                assert torch.allclose(found[key], value, rtol=0, atol=1e-10), (name, rank, key)
    for rank in range(count):
        found = load_file(tmp_path / f"average-{rank}.safetensors")
        # `expected` is that of fifty steps; there were thirteen meetings.
        meetings = (found["expected"] - found["beside"]) / 50 * PERIOD * 13 + found["beside"]
        assert found["moved"].tolist() == meetings.tolist()
