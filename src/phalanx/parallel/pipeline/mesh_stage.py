"""A stage whose layers may be sharded and split on the mesh's other axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from phalanx.parallel.pipeline.exact_messages import exact_copy
from phalanx.parallel.pipeline.messages import Handover
from phalanx.parallel.pipeline.stage import Stage, StageInput


class _Half(NamedTuple):
    """A micro-batch between the two halves of its backward pass."""

    root: Tensor
    gradient: Tensor | None
    groups: list[dict[str, Any]] | None
    """Groups that the first half leaves for the second; None: there was none."""


class MeshStage(Stage):
    """A stage whose layers may hold DTensors, as tensor parallelism and FSDP make them: FSDP
    gathers its parameters once a step, and reduces their gradients in its last backward pass.

    Every output has a gradient, of zeros at least: no message says that there is none.
    """

    splits_backward = True

    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self._halves: dict[int, _Half] = {}

    def begin(self, step: int, sizes: Mapping[int, int]) -> None:
        super().begin(step, sizes)
        self._halves.clear()

    def forward(self, number: int, given: Handover) -> Handover:
        tensor = super().forward(number, given).tensor
        assert tensor is not None, "an output"
        return Handover(ready(tensor), requires_grad=True)

    def backward(self, number: int, gradient: Tensor | None, *, is_last: bool) -> Handover | None:
        if isinstance(self.layers, FSDPModule):
            self.layers.set_is_last_backward(is_last)
            self.layers.set_reshard_after_backward(is_last)
            self.layers.set_requires_gradient_sync(is_last)
        return super().backward(number, gradient, is_last=is_last)

    def backward_input(self, number: int, gradient: Tensor | None) -> Handover | None:
        """Return the gradient that goes back, and leave those of the weights: those of the first
        stage as a whole."""
        arrival, root, gradient = self._take(number, gradient)
        groups = None
        if arrival is not None and gradient is not None:
            inputs, weights = [arrival.anchor], iter(self._parameters)
            _, groups = stage_backward_input([root], [gradient], inputs, weights)
        self._halves[number] = _Half(root, gradient, groups)
        tensor = None if arrival is None else self._back(arrival).tensor
        # A weight may be given the same memory later.
        return None if tensor is None else Handover(exact_copy(tensor))

    def backward_weights(self, number: int) -> None:
        root, gradient, groups = self._halves.pop(number)
        if groups is not None:
            stage_backward_weight(iter(self._parameters), groups)
        elif gradient is not None:
            torch.autograd.backward(root, gradient)

    def _back(self, arrival: StageInput) -> Handover:
        if arrival.gradient is None:
            return Handover(torch.zeros_like(arrival.tensor))
        arrival.gradient = ready(arrival.gradient)
        return super()._back(arrival)


def ready(tensor: Tensor) -> Tensor:
    """Return `tensor`, waiting for a sum over tensor-parallel ranks that may still be in flight.

    Backends take plain tensors alone.
    """
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()
