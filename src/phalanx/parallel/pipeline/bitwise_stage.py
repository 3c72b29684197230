"""A stage that computes each micro-batch by itself, to the bits of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress

import torch
from torch import Tensor, nn

from phalanx.errors import UserError
from phalanx.gradients.reducer import dense_gradient
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.parallel.pipeline.messages import Handover
from phalanx.parallel.pipeline.stage import MicroBatchLoss, Stage


class BitwiseStage(Stage):
    """Layers of a stage, and the sums of what the micro-batches of a step make of them.

    Each micro-batch has buffers of its own, which begin with the values of the step before, and
    random numbers of its own: their generator is seeded on the first stage, and its state goes from
    stage to stage, once a layer has drawn from it.
    """

    def __init__(
        self,
        layers: nn.Module,
        micro_batches: int,
        seed_micro_batch: Callable[[int, int], None],
        autocast: torch.dtype | None,
    ) -> None:
        """micro_batches: of a full global batch. seed_micro_batch: seeds PyTorch's generators for
        (step, micro-batch)."""
        super().__init__(layers)
        self._num_leaves, self._seed, self._autocast = micro_batches, seed_micro_batch, autocast
        self._buffers = list(layers.buffers())
        self._is_averaged = [buffer.is_floating_point() for buffer in self._buffers]
        numbers = {id(buffer): number for number, buffer in enumerate(self._buffers)}
        self._places = [
            (module, name, numbers[id(buffer)])
            for module in layers.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        averaged = compress(self._buffers, self._is_averaged)
        likes = [self._no_losses(), *self._parameters, *averaged]
        self._reducer = TreeReducer(likes, micro_batches, None)
        self._step, self._sizes = 0, dict[int, int]()
        self._buffers_of: dict[int, Sequence[Tensor]] = {}
        """Buffers by micro-batch, as its forward pass has left them."""
        self._losses: dict[int, Tensor] = {}
        """Weighted loss and weight by micro-batch."""

    def begin(self, step: int, sizes: Mapping[int, int]) -> None:
        super().begin(step, sizes)
        self._step, self._sizes = step, dict(sizes)
        self._buffers_of.clear()
        self._losses.clear()
        self._reducer.begin([range(self._num_leaves)], list(sizes))

    def forward(self, number: int, given: Handover) -> Handover:
        buffers = [buffer.clone() for buffer in self._buffers]
        if given.random_state is None:
            self._seed(self._step, number)
        else:
            torch.set_rng_state(given.random_state)
        before = torch.get_rng_state()
        self._place(buffers)
        try:
            with self._casting():
                made = super().forward(number, given)
        finally:
            self._place(self._buffers)
        self._buffers_of[number] = buffers
        state = torch.get_rng_state()
        has_drawn = given.random_state is not None or not torch.equal(state, before)
        return made._replace(random_state=state if has_drawn else None)

    def end_with(self, number: int, loss: MicroBatchLoss) -> None:
        super().end_with(number, loss)
        self._losses[number] = torch.tensor([loss.total, self._sizes[number]], dtype=torch.float64)

    def backward(self, number: int, gradient: Tensor | None, *, is_last: bool) -> Handover | None:
        """Add what a micro-batch makes to the sums, and return the gradient that goes back.

        Raises: UserError where a layer draws random numbers.
        """
        before = torch.get_rng_state()
        back = super().backward(number, gradient, is_last=is_last)
        if not torch.equal(torch.get_rng_state(), before):
            raise UserError(
                "a layer draws random numbers in its backward pass: in a bitwise pipeline it would "
                "draw other ones than in one process; take another strategy"
            )
        self._add(number)
        return back

    @torch.no_grad()
    def _add(self, number: int) -> None:
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        averaged = list(compress(self._buffers_of[number], self._is_averaged))
        share = self._sizes[number] / sum(self._sizes.values())
        scaled = torch._foreach_mul(averaged, share) if averaged else ()
        losses = self._losses.get(number)
        losses = self._no_losses() if losses is None else losses
        self._reducer.add(number, [losses, *gradients, *scaled])

    @torch.no_grad()
    def end(self) -> Tensor:
        """Give parameters and buffers the sums over the micro-batches; return that of weighted
        losses and weights, (2,)."""
        losses, *sums = self._reducer.reduce()
        self._reducer.clear()
        number = len(self._parameters)
        for parameter, total in zip(self._parameters, sums[:number], strict=True):
            parameter.grad = total
        means, last = iter(sums[number:]), self._buffers_of[max(self._buffers_of)]
        for buffer, is_averaged, value in zip(self._buffers, self._is_averaged, last, strict=True):
            buffer.copy_(next(means) if is_averaged else value)
        self._buffers_of.clear()
        return losses

    def close(self) -> None:
        """Drop the memory of the sums."""
        self._reducer.close()

    def _casting(self) -> AbstractContextManager[object]:
        return nullcontext() if self._autocast is None else torch.autocast("cpu", self._autocast)

    def _place(self, buffers: Sequence[Tensor]) -> None:
        """Have the layers use these buffers."""
        for module, name, number in self._places:
            module._buffers[name] = buffers[number]

    @staticmethod
    def _no_losses() -> Tensor:
        return torch.zeros(2, dtype=torch.float64)
