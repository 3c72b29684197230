"""Data parallelism over MPI, written out by hand.

Every rank has the whole model and a part of each global batch. After its backward pass the
gradients of all ranks are summed, and every rank makes the same update.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from phalanx.comm.layout import starts_of
from phalanx.comm.reducer import AllReducer, Method, make_reducer
from phalanx.comm.update import UpdateRule
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.parallel.formulas import all_reduce_formula, data_parallel_state
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.over_mpi import OverMPI, gradient_of
from phalanx.parallel.strategy import UpdateTimes, backward
from phalanx.records.schema import Expected


class MPI(OverMPI):
    """All ranks of a node read the sums from one place: during the optimizer's step every
    parameter's `grad` is a view of the reducer's result. A parameter that the loss does not reach
    has a gradient of zeros."""

    def __init__(self, world: World, *, method: Method = "auto") -> None:
        super().__init__(world)
        self._method = method
        self.coordinates = {"dp": self.rank}
        self._reducer: AllReducer | None = None

    def prepare(self, model: nn.Module, rule: UpdateRule) -> None:
        """Raises: UserError when the ranks cannot sum in the way that is asked for."""
        super().prepare(model, rule)
        self._rule = rule
        for parameter in self._parameters:
            self._world.broadcast(parameter.detach().numpy())
        sizes = [parameter.numel() for parameter in self._parameters]
        dtype = self._parameters[0].detach().numpy().dtype
        try:
            self._reducer = make_reducer(self._world, sizes, dtype, self._method)
        except ValueError as error:
            raise UserError(f"--all-reduce {self._method}: {error}; leave it out") from error
        self.collective = self._reducer.name
        total = torch.from_numpy(self._reducer.total)
        self._sums = [
            total[start : start + parameter.numel()].view_as(parameter)
            for parameter, start in zip(self._parameters, starts_of(sizes), strict=False)
        ]
        self.optimizer = torch_optimizer(rule, self._parameters)

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        began = time.perf_counter()
        backward(loss_sum, self.loss_weight(global_targets))
        computed = time.perf_counter()
        if self.size > 1:
            self._sum_gradients()
        reduced = time.perf_counter()
        self.step_optimizer()
        return UpdateTimes(backward_s=computed - began, communication_s=reduced - computed)

    def _sum_gradients(self) -> None:
        assert self._reducer is not None, "prepare() comes first"
        gradients = [gradient_of(parameter) for parameter in self._parameters]
        self._reducer.all_reduce_at([gradient.data_ptr() for gradient in gradients])
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total
        self.communicated_bytes += self._reducer.total.nbytes

    def expected(self, global_batch_size: int) -> Expected:  # noqa: ARG002
        assert self._reducer is not None, "prepare() comes first"
        reducer, size = self._reducer, self._reducer.dtype.itemsize
        state_bytes, state_formula = data_parallel_state(self._rule, size, reducer.num_bytes)
        return Expected(
            sent_bytes=reducer.sent_bytes_per_call if self.size > 1 else 0,
            received_bytes=reducer.received_bytes_per_call if self.size > 1 else 0,
            traffic_formula=all_reduce_formula(reducer.name, self.rank, self.size, size),
            state_bytes=state_bytes,
            state_formula=state_formula,
        )

    def close(self) -> None:
        if self._reducer is not None:
            self.clear_gradients()
            self._sums.clear()
            self._reducer.close()
            self._reducer = None
        super().close()
