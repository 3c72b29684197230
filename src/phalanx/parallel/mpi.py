"""Data parallelism over MPI, written out by hand.

Every rank has the whole model and a part of each global batch. After its backward pass the
gradients of all ranks are summed, and every rank makes the same update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.layout import starts_of
from phalanx.comm.reducer import AllReducer, Method, make_reducer
from phalanx.comm.world import World
from phalanx.parallel.strategy import Strategy


class MPI(Strategy):
    """All ranks of a node read the sums from one place: after `backward` every parameter's `grad`
    is a view of the reducer's result."""

    def __init__(self, world: World, *, method: Method = "auto") -> None:
        self._world = world
        self._method = method
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.library = world.library
        self._reducer: AllReducer | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        self._parameters = list(model.parameters())
        for parameter in self._parameters:
            self._world.broadcast(parameter.detach().numpy())
        sizes = [parameter.numel() for parameter in self._parameters]
        dtype = self._parameters[0].detach().numpy().dtype
        self._reducer = make_reducer(self._world, sizes, dtype, self._method)
        self.collective = self._reducer.name
        total = torch.from_numpy(self._reducer.total)
        self._sums = [
            total[start : start + parameter.numel()].view_as(parameter)
            for parameter, start in zip(self._parameters, starts_of(sizes), strict=False)
        ]
        return model

    def backward(self, loss_sum: Tensor, global_samples: int) -> float:
        for parameter in self._parameters:
            parameter.grad = None
        loss_sum.backward(torch.tensor(1 / global_samples, dtype=loss_sum.dtype))
        computed_at = time.perf_counter()
        if self.size > 1:
            self._sum_gradients()
        return computed_at

    def _sum_gradients(self) -> None:
        assert self._reducer is not None, "prepare() comes first"
        self._reducer.all_reduce([_flat_gradient(parameter) for parameter in self._parameters])
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total
        self.communicated_bytes += self._reducer.total.nbytes

    def barrier(self) -> None:
        self._world.barrier("the barrier of the epoch")

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        rows = self._world.gather(np.array(values, dtype=np.float64))
        return None if rows is None else rows.tolist()

    def share(self, text: str) -> str:
        return self._world.share(text)

    def close(self) -> None:
        if self._reducer is not None:
            for parameter in self._parameters:
                parameter.grad = None
            self._sums.clear()
            self._reducer.close()
            self._reducer = None
        self._world.close()


def _flat_gradient(parameter: nn.Parameter) -> NDArray[Any]:
    """(n,) in the order of the parameter's elements; zeros where the loss does not reach it."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), dtype=parameter.dtype).numpy()
    return parameter.grad.numpy().reshape(-1)
