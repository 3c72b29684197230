"""Data parallelism over MPI, written out by hand.

Every rank has the whole model and a part of each global batch. After its backward pass the
gradients of all ranks are summed, bucket by bucket, and every rank makes the same update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm.reducer import AllReducer, Method, make_reducer
from phalanx.comm.world import World
from phalanx.parallel.buckets import BUCKET_BYTES, buckets, offsets
from phalanx.parallel.strategy import Strategy


class MPI(Strategy):
    """The gradients of all parameters are views of one flat buffer, which the ranks of a node
    share where they can: backward writes where all-reduce reads, and nothing is copied."""

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
        starts = offsets([parameter.numel() for parameter in self._parameters])
        dtype = self._parameters[0].detach().numpy().dtype
        self._reducer = make_reducer(self._world, starts[-1], dtype, self._method)
        self.collective = self._reducer.name
        self._gradients = torch.from_numpy(self._reducer.buffer)
        self._buckets = buckets(starts[-1], dtype.itemsize, BUCKET_BYTES)
        for parameter, start in zip(self._parameters, starts, strict=False):
            gradient = self._gradients[start : start + parameter.numel()]
            parameter.grad = gradient.view_as(parameter)
        return model

    def backward(self, loss_sum: Tensor, global_samples: int) -> float:
        assert self._reducer is not None, "prepare() comes first"
        self._gradients.zero_()
        loss_sum.backward(torch.tensor(1 / global_samples, dtype=loss_sum.dtype))
        computed_at = time.perf_counter()
        if self.size > 1:
            for start, stop in self._buckets:
                self._reducer.all_reduce(start, stop)
            self.communicated_bytes += self._gradients.nbytes
        return computed_at

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
            del self._gradients
            self._reducer.close()
            self._reducer = None
        self._world.close()
