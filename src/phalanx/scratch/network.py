"""Layers in a row, their parameters in one vector."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from phalanx.scratch.arrays import Array, Labels
from phalanx.scratch.initial import initial_bias, initial_weight
from phalanx.scratch.loss import BatchResult, SoftmaxCrossEntropy
from phalanx.scratch.modules import Linear, Module, Parameter, ReLU, Sigmoid

Activation = Literal["sigmoid", "relu"]


class FeedForwardNetwork:
    """Modules one after the other, and the loss at the end.

    `parameters` (n,) and `gradients` (n,) hold those of all modules, which see their own part of
    them: one all-reduce moves all gradients, one line of arithmetic updates all parameters.
    """

    def __init__(self, modules: Sequence[Module], dtype: DTypeLike) -> None:
        self.modules = modules
        self.loss = SoftmaxCrossEntropy()
        owned = [parameter for module in modules for parameter in module.parameters]
        size = sum(parameter.value.size for parameter in owned)
        self.parameters: Array = np.zeros(size, dtype)
        self.gradients: Array = np.zeros(size, dtype)
        gather(owned, self.parameters, self.gradients)

    def forward(self, inputs: Array, labels: Labels) -> BatchResult:
        """inputs: (n, width), not changed; labels: (n,); n may be 0."""
        outputs = inputs
        for module in self.modules:
            outputs = module.forward(outputs)
        return self.loss.forward(outputs, labels)

    def backward(self, global_batch_size: int) -> None:
        """Fill `gradients` with those of the mean loss over the global batch, as far as the
        samples of the last `forward` go."""
        gradient = self.loss.backward(global_batch_size)
        for module in reversed(self.modules):
            gradient = module.backward(gradient)


def gather(owned: Sequence[Parameter], values: Array, gradients: Array) -> None:
    """Move parameters into two vectors, one after the other."""
    start = 0
    for parameter in owned:
        stop, shape = start + parameter.value.size, parameter.value.shape
        parameter.move(values[start:stop].reshape(shape), gradients[start:stop].reshape(shape))
        start = stop


def multilayer(
    sizes: Sequence[int], activation: Activation, *, seed: int, dtype: DTypeLike
) -> FeedForwardNetwork:
    """Linear layers from sizes[0] inputs to sizes[-1] outputs, an activation between each two."""
    modules: list[Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        if number > 0:
            modules.append(activation_of(activation, inputs, dtype))
        modules.append(full_layer(number, inputs, outputs, seed=seed, dtype=dtype))
    return FeedForwardNetwork(modules, dtype)


def full_layer(number: int, inputs: int, outputs: int, *, seed: int, dtype: DTypeLike) -> Linear:
    name = layer_name(number)
    weight = initial_weight(inputs, outputs, seed=seed, name=name)
    bias = initial_bias(inputs, outputs, seed=seed, name=name)
    return Linear(name, weight, bias, dtype, is_first=number == 0)


def activation_of(activation: Activation, width: int, dtype: DTypeLike) -> Module:
    return ReLU(width) if activation == "relu" else Sigmoid(width, dtype)


def layer_name(number: int) -> str:
    """A layer's name, from which its initial weights are drawn."""
    return f"linear{number + 1}"
