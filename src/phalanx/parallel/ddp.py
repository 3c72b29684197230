"""PyTorch's DistributedDataParallel, timed: the baseline of Phalanx, and under ZeRO stage 1."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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

    def backward(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        """Run the backward pass, in which DDP sums the gradients over the ranks and divides them by
        the number of ranks."""
        backward(loss_sum, weight, inputs)
        return ReduceTimes(time.perf_counter() - self._computed_at)

    def _note_time(self, _: Tensor) -> None:
        self._computed_at = time.perf_counter()
