"""PyTorch's DistributedDataParallel, timed: the baseline of Phalanx, and under ZeRO stage 1."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.errors import UserError
from phalanx.gradients.reducer import ReduceTimes
from phalanx.parallel.step import backward


class TimedReplica:
    """A model under DDP with its defaults.

    Its communication overlaps the backward pass; counted as communication is what the step still
    waits for after its own last gradient is made.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        """Give every rank the weights of rank 0. Collective. parameters: the trained ones."""
        self._computed_at = 0.0
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._note_time)
        self.module = DistributedDataParallel(model)
        self._parameters, self._is_called = parameters, False
        self.module.register_forward_pre_hook(self._note_call)

    def backward(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        """Run the backward pass, in which DDP sums the gradients over the ranks and divides them by
        the number of ranks.

        Raises: UserError where DDP would not sum them all.
        """
        if not self._is_called:
            raise UserError(
                "the loss was not computed by run.model, whose calls have PyTorch's DDP sum the "
                'gradients: call it in place of the model, or take strategy="mpi"'
            )
        self._is_called = False
        backward(loss_sum, weight, inputs)
        if any(parameter.grad is None for parameter in self._parameters):
            names = {id(p): name for name, p in self.module.module.named_parameters()}
            missing = [names[id(p)] for p in self._parameters if p.grad is None]
            raise UserError(
                f"the loss does not reach {missing[0]}, and PyTorch's DDP sums all gradients or "
                'none: freeze it by requires_grad_(False), or take strategy="mpi"'
            )
        return ReduceTimes(time.perf_counter() - self._computed_at)

    def _note_call(self, *_: Any) -> None:
        self._is_called = True

    def _note_time(self, _: Tensor) -> None:
        self._computed_at = time.perf_counter()
