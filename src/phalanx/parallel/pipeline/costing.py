"""Measured cost of each layer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.comm.world import World
from phalanx.torch_backend.threads import naming_operations


def measured_costs(
    layers: Sequence[nn.Module], samples: Tensor, *, repeats: int = 5
) -> list[float]:
    """Measure the seconds of the forward and backward pass of each layer of a chain, the median of
    `repeats` after one that warms up. Parameters keep their gradients, and buffers their values.

    Seconds in which this thread computed, so that others on the machine do not move the cuts; of a
    layer on several threads it is the part of one.

    samples: (n, …), what a micro-batch is.
    """
    buffers = [buffer for layer in layers for buffer in layer.buffers()]
    before = [buffer.clone() for buffer in buffers]
    rows = [_seconds(layers, samples) for _ in range(repeats + 1)][1:]
    for buffer, values in zip(buffers, before, strict=True):
        buffer.copy_(values)
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _seconds(layers: Sequence[nn.Module], samples: Tensor) -> list[float]:
    given, row = samples, []
    for layer in layers:
        given = given.detach().requires_grad_(given.is_floating_point())
        parameters = [p for p in layer.parameters() if p.requires_grad]
        wanted = [tensor for tensor in (given, *parameters) if tensor.requires_grad]
        copied = given.clone()  # a layer may change it in place
        began = time.thread_time()
        output: Tensor = layer(copied)
        if output.requires_grad:
            ones = torch.ones_like(output)
            torch.autograd.grad(output, wanted, ones, allow_unused=True)
        row.append(time.thread_time() - began)
        given = output
    return row


def costs_on_all_ranks(world: World, layers: Sequence[nn.Module], samples: Tensor) -> list[float]:
    """Return the costs that rank 0 measures, on all ranks: they must cut alike.

    Collective. The others wait, so that the measuring rank has the machine for itself.
    """
    costs: list[float] = []
    if world.rank == 0:
        with naming_operations():
            costs = measured_costs(layers, samples)
    return world.share(costs)
