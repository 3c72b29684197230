"""Data parallelism over MPI, written out by hand.

Every rank has the whole model and a part of each global batch. The gradients of all ranks are
summed, after the backward pass or while it runs, and every rank makes the same update.
"""

from __future__ import annotations

import time
from typing import Literal

import torch
from torch import Tensor, nn

from phalanx.comm.layout import starts_of
from phalanx.comm.traffic import Traffic
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.bucketed_reducer import BucketedGradReducer, RankLocalState
from phalanx.gradients.compression.compressor import Compressor, Uncompressed
from phalanx.gradients.make_grad_reducer import (
    choose_algorithm,
    expected_step_traffic,
    is_worth_hiding,
    make_grad_reducer,
)
from phalanx.gradients.norms import are_finite, square_of
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.gradients.reducer import AllReducer, Method, make_reducer
from phalanx.parallel.formulas import all_reduce_formula, data_parallel_state
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.over_mpi import OverMPI, dense_gradient
from phalanx.parallel.strategy import UpdateTimes, backward
from phalanx.records.schema import ExpectedCosts
from phalanx.torch_backend.tensors import dtype_of

Overlap = Literal["auto", "on", "off"]


class MPI(OverMPI):
    """Data parallelism by a flat reducer or by bucketed reduction.

    Gradients that are neither compressed nor summed during the backward pass go through one
    reducer: all ranks of a node read the sums from one place, and during the optimizer's step every
    parameter's `grad` is a view of it. Else they are reduced bucket by bucket. A parameter that the
    loss does not reach has a gradient of zeros; a frozen one has none.
    """

    def __init__(
        self,
        world: World,
        *,
        method: Method = "auto",
        compressor: Compressor | None = None,
        overlap: Overlap = "auto",
        bucket_bytes: int | None = None,
    ) -> None:
        """compressor: None for none. overlap auto: where a network carries the gradients.
        bucket_bytes: of a bucketed reducer; None: as cache and network allow."""
        super().__init__(world)
        self._method = method
        self._compressor = compressor or Uncompressed()
        self._overlaps = world.size > 1 and (
            is_worth_hiding(world) if overlap == "auto" else overlap == "on"
        )
        self._bucket_bytes = bucket_bytes
        self.coordinates = {"dp": self.rank}
        self._reducer: AllReducer | None = None
        self._bucketed_reducer: BucketedGradReducer | None = None

    def prepare(self, model: nn.Module, rule: OptimizerConfig) -> None:
        """Raise UserError when the ranks cannot sum in the way that is asked for."""
        super().prepare(model, rule)
        self._rule = rule
        for parameter in self._parameters:
            self._world.broadcast(parameter.detach().numpy())
        self._broadcast_untrained()
        is_compressed = not isinstance(self._compressor, Uncompressed)
        try:
            if self.size > 1 and (self._overlaps or is_compressed):
                self._prepare_bucketed_reducer()
            else:
                self._prepare_reducer()
        except ValueError as error:
            raise UserError(f"--all-reduce {self._method}: {error}; leave it out") from error
        self.optimizer = torch_optimizer(rule, self._parameters)

    def _prepare_bucketed_reducer(self) -> None:
        self._bucketed_reducer = make_grad_reducer(
            self._world,
            self._parameters,
            self._compressor,
            method=self._method,
            bucket_bytes=self._bucket_bytes,
            overlaps=self._overlaps,
        )
        counts = [[self._parameters[n].numel() for n in ns] for ns in self._bucketed_reducer.plan()]
        dtype = dtype_of(self._parameters[0].dtype)
        largest = max(map(sum, counts))
        self.collective = choose_algorithm(self._world, largest, dtype, self._method).algorithm

    def _prepare_reducer(self) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        dtype = self._parameters[0].detach().numpy().dtype
        self._reducer = make_reducer(self._world, sizes, dtype, self._method)
        self.collective = self._reducer.name
        total = torch.from_numpy(self._reducer.total)
        self._sums = [
            total[start : start + parameter.numel()].view_as(parameter)
            for parameter, start in zip(self._parameters, starts_of(sizes), strict=False)
        ]

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        began = time.perf_counter()
        weight = self.loss_weight(global_targets)
        if self._bucketed_reducer is not None:
            return self._update_bucketed(self._bucketed_reducer, loss_sum, weight)
        backward(loss_sum, weight)
        computed = time.perf_counter()
        self._sum_gradients()
        reduced = time.perf_counter()
        self.step_optimizer()
        return UpdateTimes(backward_s=computed - began, communication_s=reduced - computed)

    def _update_bucketed(
        self, reducer: BucketedGradReducer, loss_sum: Tensor, weight: float
    ) -> UpdateTimes:
        began = time.perf_counter()
        reducer.spans = self.spans
        with reducer:
            backward(loss_sum, weight)
        ended, times = time.perf_counter(), reducer.times
        self.communicated_bytes += sum(parameter.nbytes for parameter in self._parameters)
        self.step_optimizer()
        return UpdateTimes(
            backward_s=ended - began - times.exposed_s,
            communication_s=times.exposed_s,
            hidden_s=times.hidden_s,
            last_bucket_s=times.last_bucket_s,
        )

    def gradients_are_finite(self) -> bool:
        """Return whether they are: known where the sums were made, or by one reading of them."""
        if self._reducer is None or self.size == 1:
            return super().gradients_are_finite()
        known = self._reducer.is_finite
        return are_finite([torch.from_numpy(self._reducer.total)]) if known is None else known

    def gradient_square(self) -> float:
        """Return the squared norm, in one reading where the sums are contiguous."""
        if self._reducer is None or self.size == 1:
            return super().gradient_square()
        return square_of(torch.from_numpy(self._reducer.total))

    def _sum_gradients(self) -> None:
        assert self._reducer is not None, "prepare() comes first"
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        if self.size == 1:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            return
        self._reducer.all_reduce_at([gradient.data_ptr() for gradient in gradients])
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            parameter.grad = total
        self.communicated_bytes += self._reducer.total.nbytes

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        size = self._parameters[0].element_size()
        num_bytes = sum(parameter.nbytes for parameter in self._parameters)
        state_bytes, state_formula = data_parallel_state(self._rule, size, num_bytes)
        moved, formula = self._moved()
        return ExpectedCosts(
            sent_bytes=None if moved is None else moved.sent_bytes,
            received_bytes=None if moved is None else moved.received_bytes,
            traffic_formula=formula,
            state_bytes=state_bytes,
            state_formula=state_formula,
        )

    def _moved(self) -> tuple[Traffic | None, str]:
        """Return the traffic of a step; before the first, with the buckets as they most likely will
        be."""
        size = self._parameters[0].element_size()
        if self._bucketed_reducer is None:
            assert self._reducer is not None, "prepare() comes first"
            formula = all_reduce_formula(self._reducer.name, self.rank, self.size, size)
            return (self._reducer.traffic_per_call if self.size > 1 else Traffic(0, 0, 0)), formula
        plan = self._bucketed_reducer.plan()
        args = (self._world, self._parameters, plan, self._compressor, self._method)
        assert self.collective is not None, "set where the reducer is made"
        formula = all_reduce_formula(self.collective, self.rank, self.size, size)
        if self._compressor.name != "none":
            formula = f"{self._compressor.name} of {formula}"
        return expected_step_traffic(*args), formula

    def rank_local_state(self) -> RankLocalState | None:
        return (
            self._bucketed_reducer.rank_local_state()
            if self._bucketed_reducer is not None
            else None
        )

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        return self._bucketed_reducer is not None and self._bucketed_reducer.load_rank_local_state(
            state
        )

    def close(self) -> None:
        if self._bucketed_reducer is not None:
            self._bucketed_reducer.close()
            self._bucketed_reducer = None
        if self._reducer is not None:
            self.clear_gradients()
            self._sums.clear()
            self._reducer.close()
            self._reducer = None
        super().close()
