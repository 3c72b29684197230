"""`python -m phalanx.bench.gradient_order REQUEST`: when each gradient of a model is ready.

Forward and backward passes on random data, on one process; hooks of its own take the times.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import Tensor

from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions

PASSES = 12


def order_of_gradients(
    model: str, options: ModelOptions, shape: DataShape, batch: int, passes: int = PASSES
) -> list[tuple[int, float]]:
    """Return (bytes, share of the backward pass that is over) of each gradient as it gets ready."""
    network = build_model(model, seed=0, options=options, shape=shape)
    inputs, targets = random_batch(shape, batch)
    ready: dict[int, list[float]] = {}
    began_s = 0.0

    def note(number: int) -> None:
        ready.setdefault(number, []).append(time.perf_counter() - began_s)

    parameters = [p for p in network.parameters() if p.requires_grad]
    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: note(number))
    passes_s = []
    for _ in range(passes):
        outputs = network(inputs)
        flat = outputs.reshape(-1, outputs.shape[-1]) if shape.is_text else outputs
        loss = torch.nn.functional.cross_entropy(flat, targets.reshape(-1))
        began_s = time.perf_counter()
        loss.backward()
        passes_s.append(time.perf_counter() - began_s)
        network.zero_grad()
    shares = {
        number: statistics.median(t / whole for t, whole in zip(times, passes_s, strict=True))
        for number, times in ready.items()
    }
    order = sorted(shares, key=lambda number: shares[number])
    return [(parameters[number].nbytes, round(min(1.0, shares[number]), 4)) for number in order]


def random_batch(shape: DataShape, batch: int) -> tuple[Tensor, Tensor]:
    """Return inputs and classes of the shape, drawn at random."""
    generator = torch.Generator().manual_seed(0)
    size = (batch, *shape.inputs)
    if shape.is_text:
        tokens = torch.randint(shape.num_classes, size, generator=generator)
        return tokens, tokens
    classes = torch.randint(shape.num_classes, (batch,), generator=generator)
    return torch.rand(size, generator=generator), classes


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    found = order_of_gradients(
        request["model"],
        ModelOptions(**request["sizes"]),
        DataShape(**{**request["shape"], "inputs": tuple(request["shape"]["inputs"])}),
        request["batch"],
    )
    print(json.dumps(found))
