"""`phalanx.start` against the same loop in bare PyTorch, on one process and one thread.

    python benchmarks/own_program.py [--quick]     # half a minute

Epochs of both in turn, each the median of its steps; reported is the ratio of a pair of epochs, its
median and range over the rounds. The MLP at batch 128 is the smallest step that we know.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import phalanx
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelName

BATCH, CLASSES = 128, 10
ROUNDS = 9
STEPS: dict[ModelName, int] = {"mlp": 150, "cnn": 20}


def made(name: ModelName) -> tuple[nn.Module, torch.optim.Optimizer]:
    shape = DataShape(inputs=(1, 28, 28), num_classes=CLASSES)
    model = build_model(name, seed=0, dtype=torch.float32, shape=shape)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def bare(name: ModelName, data: tuple[Tensor, Tensor]) -> list[float]:
    """Return the seconds of each step."""
    model, optimizer = made(name)
    times = []
    order = torch.randperm(len(data[0]))
    began = time.perf_counter()
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        inputs, targets = data[0].index_select(0, chosen), data[1].index_select(0, chosen)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        loss.item()
        optimizer.step()
        ended = time.perf_counter()
        times.append(ended - began)
        began = ended
    return times


def on_phalanx(name: ModelName, data: tuple[Tensor, Tensor]) -> list[float]:
    """Return the seconds of each step."""
    model, optimizer = made(name)
    times = []
    run = phalanx.start(model, optimizer, data, batch_size=BATCH)
    began = time.perf_counter()
    for batch in run:
        loss = cross_entropy(run.model(batch.inputs), batch.targets)
        run.backward(loss)
        ended = time.perf_counter()
        times.append(ended - began)
        began = ended
    return times


def main() -> None:
    torch.set_num_threads(1)
    rounds = 3 if "--quick" in sys.argv else ROUNDS
    kinds: tuple[Callable[[ModelName, tuple[Tensor, Tensor]], list[float]], ...]
    kinds = (bare, on_phalanx)
    print(f"{'model':6} {'bare µs':>9} {'phalanx µs':>10}  ratio (range over {rounds} rounds)")
    for name, steps in STEPS.items():
        data = (torch.randn(steps * BATCH, 1, 28, 28), torch.randint(CLASSES, (steps * BATCH,)))
        pairs = []
        for number in range(rounds + 1):
            order = kinds if number % 2 else kinds[::-1]
            found = {kind: statistics.median(kind(name, data)) for kind in order}
            pairs.append((found[bare], found[on_phalanx]))
        pairs = pairs[1:]  # the first warms up
        ratios = sorted(theirs / ours for ours, theirs in pairs)
        medians = [1e6 * statistics.median(column) for column in zip(*pairs, strict=True)]
        print(
            f"{name:6} {medians[0]:9.1f} {medians[1]:10.1f}  {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
