"""A stage of a pipeline: its layers, and micro-batches between forward and backward passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phalanx.errors import UserError
from phalanx.parallel.pipeline.exact_messages import exact_copy
from phalanx.parallel.pipeline.messages import Handover
from phalanx.parallel.step import trained_parameters


class MicroBatchLoss(NamedTuple):
    """Loss of a micro-batch, on the rank with the last stage."""

    loss: Tensor
    """0-dim, to be differentiated."""
    factor: float
    """Factor of its gradient."""
    total: float
    """Sum over the samples."""
    logits: Tensor | None
    """(n, …, classes)."""


class StageInput:
    """Activations that have come from the stage before, and their gradient, once it is known."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.gradient: Tensor | None = None
        self.anchor = torch.empty(0, requires_grad=True)
        """Leaf on which the activations depend: they have a gradient, and are none themselves."""


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
    factor: float | None = None
    """Factor of the gradient of the loss; None: the root is an output."""


class Stage:
    """Layers of a stage, whose parameters' gradients grow by those of each micro-batch."""

    splits_backward = False
    """True if gradients of weights are computed apart where the schedule has it so."""

    def __init__(self, layers: nn.Module) -> None:
        self.layers = layers
        self._parameters = list(trained_parameters(layers).values())
        self._passes: dict[int, _Pass] = {}

    def begin(self, step: int, sizes: Mapping[int, int]) -> None:  # noqa: ARG002
        """Begin a step. sizes: samples of each micro-batch that goes through the stage."""
        self._passes.clear()

    def forward(self, number: int, given: Handover) -> Handover:
        """Return what the layers make of micro-batch `number`.

        Raises: UserError where that is no tensor.
        """
        assert given.tensor is not None, "activations"
        arrival, x = None, given.tensor
        if given.requires_grad:
            arrival = StageInput(given.tensor)
            x = _Enter.apply(arrival.anchor, arrival)  # type: ignore[no-untyped-call]
        output = one_tensor(self.layers(x))
        self._passes[number] = _Pass(arrival, output)
        return Handover(output.detach(), output.requires_grad)

    def output_of(self, number: int) -> Tensor:
        """Return the output of the layers for a micro-batch, which autograd knows."""
        return self._passes[number].root

    def end_with(self, number: int, loss: MicroBatchLoss) -> None:
        """Let the backward pass of a micro-batch begin with its loss."""
        self._passes[number] = self._passes[number]._replace(root=loss.loss, factor=loss.factor)

    def backward(self, number: int, gradient: Tensor | None, *, is_last: bool) -> Handover | None:  # noqa: ARG002
        """Add what a micro-batch makes to the gradients, and return the gradient that goes back;
        None where none does.

        gradient: of the output; None: there is none, or the stage ends with the loss. is_last: of
        this step.
        """
        arrival, root, gradient = self._take(number, gradient)
        if gradient is not None:
            torch.autograd.backward(root, gradient)
        return None if arrival is None else self._back(arrival)

    def backward_input(self, number: int, gradient: Tensor | None) -> Handover | None:
        """Return the gradient that goes back, as `backward`; those of the weights may wait for
        `backward_weights`."""
        return self.backward(number, gradient, is_last=False)

    def backward_weights(self, number: int) -> None:
        """Add what `backward_input` has left of a micro-batch to the gradients of the weights."""

    def _take(
        self, number: int, gradient: Tensor | None
    ) -> tuple[StageInput | None, Tensor, Tensor | None]:
        """Return input and root of a micro-batch, and the gradient of the root; None: of frozen
        layers alone, or unknown."""
        arrival, root, factor = self._passes.pop(number)
        if factor is not None:
            return arrival, root, torch.full_like(root, factor)
        return arrival, root, gradient if root.requires_grad else None

    def _back(self, arrival: StageInput) -> Handover:
        """Return the gradient that goes back, in memory that no parameter's has: others are added
        to that."""
        gradient = arrival.gradient
        if gradient is None:
            return Handover(None)
        own = [memory_of(p.grad) for p in self._parameters if p.grad is not None]
        return Handover(exact_copy(gradient) if memory_of(gradient) in own else gradient)


def one_tensor(output: object) -> Tensor:
    """Return what a layer has made. Raises: UserError where that is no tensor."""
    if isinstance(output, Tensor):
        return output
    raise UserError(
        f"a layer of the pipeline returned a {type(output).__name__}: each layer of a pipeline "
        "must take and return one tensor"
    )


def memory_of(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins; of a DTensor, of what this rank holds."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.untyped_storage().data_ptr()
