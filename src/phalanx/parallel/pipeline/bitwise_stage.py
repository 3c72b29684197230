"""A stage that computes each micro-batch by itself, to the bits of one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phalanx.errors import UserError
from phalanx.gradients.reducer import dense_gradient
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.parallel.pipeline.exact_messages import Handover, exact_copy
from phalanx.parallel.step import trained_parameters


class StageInput:
    """Activations that have come from the stage before, and their gradient, once it is known."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.gradient: Tensor | None = None


class _Enter(torch.autograd.Function):
    """Activations of the stage before, as an inner node of this stage's graph.

    No leaf: layers may change them in place, autocast stores no casts of them, and their gradient
    keeps its layout.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, arrival: StageInput) -> Tensor:  # noqa: ARG004
        ctx.arrival = arrival
        ctx.set_materialize_grads(False)
        return arrival.tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, None]:
        ctx.arrival.gradient = gradient
        return None, None


class _Pass(NamedTuple):
    """A micro-batch between its forward and its backward pass."""

    arrival: StageInput | None
    """None where no gradient goes back."""
    root: Tensor
    """Output of the stage, or the loss."""
    buffers: Sequence[Tensor]
    """Of the stage, as the forward pass has left them."""
    losses: Tensor
    """Weighted loss, weight."""


class BitwiseStage:
    """Layers of a stage, and the sums of what the micro-batches of a step make of them.

    Each micro-batch has buffers of its own, which begin with the values of the step before.
    """

    def __init__(self, layers: nn.Module, micro_batches: int) -> None:
        """micro_batches: of a full global batch."""
        self._layers, self._num_leaves = layers, micro_batches
        self._parameters = list(trained_parameters(layers).values())
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
        self._passes: dict[int, _Pass] = {}
        self._last_buffers: Sequence[Tensor] = ()
        self._last_leaf = 0

    def begin(self, leaves: Sequence[int]) -> None:
        """Begin a global batch. leaves: the micro-batches that have samples, in order."""
        self._passes.clear()
        self._last_leaf = leaves[-1]
        self._reducer.begin([range(self._num_leaves)], leaves)

    def forward(self, number: int, given: Handover) -> Tensor:
        """Return what the layers make of micro-batch `number`.

        Raises: UserError where that is no tensor.
        """
        assert given.tensor is not None, "activations"
        buffers = [buffer.clone() for buffer in self._buffers]
        arrival, x = None, given.tensor
        if given.requires_grad:
            arrival = StageInput(given.tensor)
            x = _Enter.apply(torch.empty(0, requires_grad=True), arrival)  # type: ignore[no-untyped-call]
        self._place(buffers)
        try:
            output = self._layers(x)
        finally:
            self._place(self._buffers)
        if not isinstance(output, Tensor):
            raise UserError(
                f"a layer of the pipeline returned a {type(output).__name__}: the layers between "
                "which it is cut take and return one tensor"
            )
        self._passes[number] = _Pass(arrival, output, buffers, self._no_losses())
        return output

    def end_with(self, number: int, loss: Tensor, weighted_loss: float, weight: float) -> None:
        """Let the backward pass of a micro-batch begin with its loss."""
        losses = torch.tensor([weighted_loss, weight], dtype=torch.float64)
        self._passes[number] = self._passes[number]._replace(root=loss, losses=losses)

    def root_of(self, number: int) -> Tensor:
        """Return the tensor with which the backward pass of a micro-batch begins."""
        return self._passes[number].root

    def backward(self, number: int, gradient: Tensor | None, share: float) -> Handover | None:
        """Add what a micro-batch makes to the sums, and return the gradient that goes back; None
        where none does.

        gradient: of the root; None: there is none. share: of the global batch's samples.
        Raises: UserError where a layer draws random numbers.
        """
        arrival, root, buffers, losses = self._passes.pop(number)
        before = torch.get_rng_state()
        if gradient is not None:
            torch.autograd.backward(root, gradient)
        if not torch.equal(torch.get_rng_state(), before):
            raise UserError(
                "a layer draws random numbers in its backward pass: in a bitwise pipeline it would "
                "draw other ones than in one process; take another strategy"
            )
        back = None if arrival is None else Handover(self._unshared(arrival.gradient))
        with torch.no_grad():
            gradients = [dense_gradient(parameter) for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
            averaged = list(compress(buffers, self._is_averaged))
            scaled = torch._foreach_mul(averaged, share) if averaged else ()
            self._reducer.add(number, [losses, *gradients, *scaled])
        if number == self._last_leaf:
            self._last_buffers = buffers
        return back

    @torch.no_grad()
    def end(self) -> Tensor:
        """Give parameters and buffers the sums over the micro-batches; return that of weighted
        losses and weights, (2,)."""
        losses, *sums = self._reducer.reduce()
        self._reducer.clear()
        number = len(self._parameters)
        for parameter, total in zip(self._parameters, sums[:number], strict=True):
            parameter.grad = total
        means = iter(sums[number:])
        all_buffers = zip(self._buffers, self._is_averaged, self._last_buffers, strict=True)
        for buffer, is_averaged, last in all_buffers:
            buffer.copy_(next(means) if is_averaged else last)
        self._last_buffers = ()
        return losses

    def close(self) -> None:
        """Drop the memory of the sums."""
        self._reducer.close()

    def _unshared(self, gradient: Tensor | None) -> Tensor | None:
        """Return a gradient in memory that no parameter's has: others are added to that."""
        if gradient is None:
            return None
        own = [p.grad.untyped_storage().data_ptr() for p in self._parameters if p.grad is not None]
        return exact_copy(gradient) if gradient.untyped_storage().data_ptr() in own else gradient

    def _place(self, buffers: Sequence[Tensor]) -> None:
        """Have the layers use these buffers."""
        for module, name, number in self._places:
            module._buffers[name] = buffers[number]

    @staticmethod
    def _no_losses() -> Tensor:
        return torch.zeros(2, dtype=torch.float64)
