"""Shapes between layers, found without arithmetic; batches filled up to a fixed size."""

import pytest
import torch

from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of
from phalanx.parallel.pipeline.padding import pad_batch
from phalanx.parallel.step import IGNORED


def test_gpt() -> None:
    shape = DataShape(inputs=(6,), num_classes=11)
    model = build_model(
        "gpt", seed=0, options=ModelOptions(width=8, layers=2, heads=2), shape=shape
    )
    outputs = outputs_of(list(model), torch.zeros(3, 6, dtype=torch.int64))
    assert outputs == [Boundary((6, 8), torch.float32)] * 4 + [Boundary((6, 11), torch.float32)]
    assert outputs[0].num_bytes(3) == 3 * 6 * 8 * 4


def test_what_leaves_a_layer() -> None:
    model = build_model("mlp", seed=0, dtype=torch.float64)
    samples = torch.zeros(2, 1, 28, 28, dtype=torch.float64)
    shapes = [boundary.shape for boundary in outputs_of(list(model), samples)]
    given, made = samples, []
    for layer in model:
        given = layer(given)
        made.append(tuple(given.shape[1:]))
    assert shapes == made


def test_padded() -> None:
    inputs, targets = torch.arange(6.0).view(3, 2), torch.tensor([[1, 2], [3, 4], [5, 6]])
    given, wanted = pad_batch(inputs, targets, 5, Boundary((2,), torch.float32))
    assert torch.equal(given[:3], inputs)
    assert torch.equal(given[3:], inputs[[0, 0]])
    assert torch.equal(wanted[:3], targets)
    assert torch.equal(wanted[3:], torch.full((2, 2), IGNORED))
    assert pad_batch(inputs, targets, 3, Boundary((2,), torch.float32)) == (inputs, targets)


@pytest.mark.parametrize(
    ("samples", "targets", "text"),
    [
        (torch.zeros(6, 2), 6, "1 to 5 samples a step, and got 6 with 6"),
        (torch.zeros(3, 2), 4, "got 3 with 4 targets"),
        (torch.zeros(0, 2), 0, "got 0 with 0"),
        (torch.zeros(3, 4), 3, r"samples of \(2,\), torch.float32, and got \(4,\)"),
        (torch.zeros(3, 2).double(), 3, "torch.float64"),
    ],
)
def test_what_does_not_fit(samples: torch.Tensor, targets: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pad_batch(samples, torch.zeros(targets), 5, Boundary((2,), torch.float32))
