"""Numbers by which `phalanx check` compares runs: the same however a batch is cut."""

import random
from collections import namedtuple

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from phalanx.records.watched import CHECK_SETUP, CheckSetup
from phalanx.run.randomness import are_used, seed_generators
from phalanx.run.watching import checkable, doubled, sum_of

MASK = 2**64 - 1
Pair = namedtuple("Pair", "inputs targets")


@pytest.mark.parametrize(
    "data",
    [
        torch.randn(7, 3),
        torch.randint(9, (7,)),
        torch.randn(7, 2, dtype=torch.complex64),
        torch.rand(7) > 0.5,
        torch.randn(7, dtype=torch.bfloat16),
    ],
)
def test_sums_add_up_over_any_cut(data: torch.Tensor) -> None:
    assert (sum_of(data[:3]) + sum_of(data[3:])) & MASK == sum_of(data)
    assert sum_of(data) == sum_of(data.flip(0))
    assert sum_of((data, {"n": data.numpy() if data.dtype == torch.float32 else data})) == (
        2 * sum_of(data) & MASK
    )
    changed = data.clone()
    changed[0] = changed[0] * 0 if data.dtype != torch.bool else ~changed[0]
    assert sum_of(changed) != sum_of(data) or not data[0].any()


def test_batches_become_float64_and_keep_their_kind() -> None:
    found = doubled(Pair(torch.ones(2), [torch.ones(2, dtype=torch.int64), "name"]))
    assert type(found) is Pair
    assert found.inputs.dtype == torch.float64
    assert found.targets[0].dtype == torch.int64
    assert found.targets[1] == "name"


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), lambda: np.random.beta(1, 1), random.random, lambda: None]
)
def test_a_draw_is_noticed(draw: object) -> None:
    """A mixup that draws from NumPy was taken for a loss over several samples."""
    seed_generators(2**40 + 7)
    drawn = draw()  # type: ignore[operator]
    assert are_used() is (drawn is not None)


def test_arguments_that_write_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = CheckSetup(folder="", steps=5, seed=1, is_double=True, micro_batches=3)
    model, given = nn.Linear(1, 1), dict[str, object]()

    @checkable
    def start(model: nn.Module, **arguments: object) -> None:
        given.update(arguments)

    monkeypatch.setenv("PHALANX_CHECK", "1")  # of collectives: it was read as a setup, and failed
    start(model, checkpoint_dir="saved", steps=3)
    assert given == {"checkpoint_dir": "saved", "steps": 3}
    given.clear()
    monkeypatch.setenv(CHECK_SETUP, msgspec.json.encode(setup).decode())
    start(model, checkpoint_dir="saved", resume=True, run_dir="runs", strategy="local", steps=30)
    assert given == {"steps": 5, "micro_batches": 3}
    assert model.weight.dtype == torch.float64
    given.clear()
    start(model, bitwise=True, steps=3)
    assert given == {"steps": 3, "bitwise": True}
