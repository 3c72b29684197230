"""Shapes between layers, found without arithmetic."""

import torch

from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of


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
