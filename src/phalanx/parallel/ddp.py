"""PyTorch's DistributedDataParallel, timed: the baseline, that of GPUs, and under ZeRO stage 1."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.errors import UserError
from phalanx.gradients.reducer import ReduceTimes
from phalanx.parallel.costs import data_parallel_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import StepOptions, backward
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import ExpectedCosts


class TorchReplicas(Strategy):
    """DDP with its defaults, on the default group of `torch.distributed`.

    Its communication overlaps the backward pass; counted as communication is what the step still
    waits for after its own last gradient is made.
    """

    recomputes = True

    def __init__(
        self, group: RunGroup, *, backend: str, step_options: StepOptions | None = None
    ) -> None:
        """group: whose ranks are those of the default group, which is of `backend`."""
        super().__init__(group, step_options)
        self.collective = backend
        self._computed_at, self._is_called = 0.0, False
        self._ready: list[Tensor] = []

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        super().prepare(model, rule)
        for parameter in self._parameters:  # registered before DDP's hooks
            parameter.register_post_accumulate_grad_hook(self._mark_ready)
        self.module = self._ddp = DistributedDataParallel(model)
        self._ddp.register_forward_pre_hook(self._note_call)

    def loss_weight(self, global_targets: int) -> float:
        """Return the weight that undoes DDP's division of the sum by the number of ranks."""
        return self.size / global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        """Run the backward pass, in which DDP sums the gradients over the ranks and divides them by
        the number of ranks.

        Raises: UserError where DDP would not sum them all.
        """
        if not self._is_called:
            raise UserError(
                "the loss was not computed by run.model, through which PyTorch's DDP sums "
                'gradients: call it in place of the model, or use strategy="mpi"'
            )
        self._is_called = False
        self._ready.clear()
        backward(loss_sum, weight, inputs)
        if len(self._ready) < len(self._parameters):
            ready, named = (
                set(map(id, self._ready)),
                zip(self._names, self._parameters, strict=True),
            )
            missing = [name for name, parameter in named if id(parameter) not in ready]
            raise UserError(
                f"the loss does not reach {missing[0]}, but PyTorch's DDP needs all gradients: "
                'freeze it by requires_grad_(False), or use strategy="mpi"'
            )
        return ReduceTimes(time.perf_counter() - self._computed_at)

    def _note_call(self, *_: Any) -> None:
        self._is_called = self._ddp.require_backward_grad_sync

    def _mark_ready(self, parameter: Tensor) -> None:
        self._ready.append(parameter)
        self._computed_at = time.perf_counter()

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        """Return the theory of a ring. Nobody counts what is really sent."""
        moved = 2 * (self.size - 1) / self.size * self._reduced_bytes
        formula = f"2(p−1)/p · {self._parameters[0].element_size()}Ψ"
        return data_parallel_costs(self._trained, moved, moved, formula)
