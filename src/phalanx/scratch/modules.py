"""Layers: each knows how to go forward, and how to take a gradient back.

`forward` maps a batch, a sample a row, to the layer's outputs. `backward` gets the gradient of the
loss by these outputs and returns that by the inputs; on the way a layer with parameters writes
their gradients. Results lie in memory that the next step writes over.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from phalanx.scratch.arrays import Array, Rows


class Parameter:
    """A trainable array and the gradient of the loss with respect to it, of the same shape."""

    def __init__(self, name: str, value: Array) -> None:
        self.name, self.value, self.gradient = name, value, np.zeros_like(value)

    def move(self, value: Array, gradient: Array) -> None:
        """Live in these arrays from now on; the values come along."""
        value[...], gradient[...] = self.value, self.gradient
        self.value, self.gradient = value, gradient


class Module(Protocol):
    parameters: tuple[Parameter, ...]

    def forward(self, inputs: Array) -> Array: ...

    def backward(self, gradient: Array) -> Array: ...


class Linear:
    """outputs = inputs · weight + bias, with weight (inputs, outputs).

    is_first: the inputs are data. Nobody asks how the loss changes with them, and the product that
    would tell is a third of the layer's work.
    """

    def __init__(
        self, name: str, weight: Array, bias: Array, dtype: DTypeLike, *, is_first: bool = False
    ) -> None:
        self.weight = Parameter(f"{name}.weight", weight.astype(dtype))
        self.bias = Parameter(f"{name}.bias", bias.astype(dtype))
        self.parameters: tuple[Parameter, ...] = (self.weight, self.bias)
        self.is_first = is_first
        num_inputs, num_outputs = weight.shape
        self._inputs = np.empty((0, num_inputs), dtype)
        self._outputs = Rows(num_outputs, dtype)
        self._gradient = Rows(num_inputs, dtype)

    def forward(self, inputs: Array) -> Array:
        outputs = self.product(inputs)
        outputs += self.bias.value
        return outputs

    def product(self, inputs: Array) -> Array:
        """inputs · weight, before the bias."""
        self._inputs = inputs
        return np.matmul(inputs, self.weight.value, out=self._outputs.of(len(inputs)))

    def backward(self, gradient: Array) -> Array:
        # Each weight was multiplied by its input, and met every sample: hence the sum over rows.
        np.matmul(self._inputs.T, gradient, out=self.weight.gradient)
        np.sum(gradient, axis=0, out=self.bias.gradient)
        if self.is_first:
            return gradient[:, :0]
        by_inputs = self._gradient.of(len(gradient))
        return np.matmul(gradient, self.weight.value.T, out=by_inputs)


class ReLU:
    """max(x, 0), in place: the linear layer before it needs its outputs no more."""

    parameters: tuple[Parameter, ...] = ()

    def __init__(self, width: int) -> None:
        self._outputs: Array = np.empty((0, width))
        self._passes = Rows(width, np.bool_)

    def forward(self, inputs: Array) -> Array:
        self._outputs = np.maximum(inputs, 0, out=inputs)
        return self._outputs

    def backward(self, gradient: Array) -> Array:
        passes = np.greater(self._outputs, 0, out=self._passes.of(len(gradient)))
        gradient *= passes
        return gradient


class Sigmoid:
    """1 / (1 + e⁻ˣ), in place. Written as (1 + tanh(x/2)) / 2, which overflows for no x."""

    parameters: tuple[Parameter, ...] = ()

    def __init__(self, width: int, dtype: DTypeLike) -> None:
        self._outputs: Array = np.empty((0, width))
        self._slope = Rows(width, dtype)

    def forward(self, inputs: Array) -> Array:
        inputs *= 0.5
        np.tanh(inputs, out=inputs)
        inputs += 1
        inputs *= 0.5
        self._outputs = inputs
        return inputs

    def backward(self, gradient: Array) -> Array:
        slope = np.subtract(1, self._outputs, out=self._slope.of(len(gradient)))
        slope *= self._outputs
        gradient *= slope
        return gradient
