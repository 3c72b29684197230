"""A neural network in NumPy, its gradients written by hand.

All parameters lie in one vector and all gradients in another, and layers have views of both. So one
message moves all gradients, and one line of arithmetic updates all parameters.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Rows and columns that a rank has of a layer's weight, (inputs, outputs): often all."""

    name: str
    inputs: int
    outputs: int
    rows: range
    columns: range

    @property
    def size(self) -> int:
        """Number of weights, and of biases, one per column."""
        return (len(self.rows) + 1) * len(self.columns)

    def initial(self, seed: int) -> Array:
        """Return (size,) float64 from U(-b, b) with b = 1 ÷ √inputs, the bias last.

        Every rank of every layout draws the full layer and cuts its part out, so that all begin
        with the same network.
        """
        bound = self.inputs**-0.5
        shape = (self.inputs, self.outputs)
        weight = generator(seed, f"{self.name}.weight").uniform(-bound, bound, shape)
        bias = generator(seed, f"{self.name}.bias").uniform(-bound, bound, self.outputs)
        return np.concatenate([weight[np.ix_(self.rows, self.columns)].ravel(), bias[self.columns]])


def full_layers(sizes: Sequence[int]) -> list[Part]:
    """Return the linear layers of a network from sizes[0] inputs to sizes[-1] outputs, uncut."""
    return [
        Part(f"linear{number}", inputs, outputs, range(inputs), range(outputs))
        for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes), 1)
    ]


def generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator for (seed, name) alone: layers of one shape get different numbers."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


class Linear:
    """outputs = inputs · weight + bias."""

    def __init__(self, part: Part, parameters: Array, gradients: Array, *, is_first: bool) -> None:
        """parameters, gradients: (part.size,), of which the layer has views.

        is_first: the inputs are data. The gradient by them is not needed, and its product is a
        third of the layer's work.
        """
        shape = len(part.rows), len(part.columns)
        count = shape[0] * shape[1]
        self.weight, self.bias = parameters[:count].reshape(shape), parameters[count:]
        self.by_weight, self.by_bias = gradients[:count].reshape(shape), gradients[count:]
        self.is_first = is_first

    def forward(self, inputs: Array) -> Array:
        self.inputs = inputs
        return inputs @ self.weight + self.bias

    def backward(self, gradient: Array) -> Array:
        """Fill the layer's gradients; return the gradient by the inputs.

        Each weight was multiplied by its input, and met every sample: hence the sum over rows.
        """
        np.matmul(self.inputs.T, gradient, out=self.by_weight)
        np.sum(gradient, axis=0, out=self.by_bias)
        return gradient[:, :0] if self.is_first else gradient @ self.weight.T


class ReLU:
    """max(x, 0)."""

    def forward(self, inputs: Array) -> Array:
        self.outputs = np.maximum(inputs, 0)
        return self.outputs

    def backward(self, gradient: Array) -> Array:
        return gradient * (self.outputs > 0)


class Sigmoid:
    """1 ÷ (1 + e⁻ˣ), written as (1 + tanh(x/2)) / 2, which overflows for no x."""

    def forward(self, inputs: Array) -> Array:
        self.outputs = (np.tanh(inputs * 0.5) + 1) * 0.5
        return self.outputs

    def backward(self, gradient: Array) -> Array:
        return gradient * ((1 - self.outputs) * self.outputs)


ACTIVATIONS = {"relu": ReLU, "sigmoid": Sigmoid}


class Result(NamedTuple):
    """Loss of each sample, (n,), and whether its highest output is the label's, (n,)."""

    losses: Array
    hits: NDArray[np.bool_]


class SoftmaxCrossEntropy:
    """loss = -log(softmax(outputs)[label]); the two have a simple gradient."""

    def forward(self, outputs: Array, labels: Array) -> Result:
        """outputs: (n, classes); labels: (n,)."""
        self.of_labels = (np.arange(len(labels)), labels)
        # Maximum of each row: the softmax is the same, e to the power of the largest is 1, nothing
        # overflows. The maximum of the full batch would take all of a small row below e⁻¹⁰⁰.
        outputs = outputs - outputs.max(1, keepdims=True)
        powers = np.exp(outputs)
        sums = powers.sum(1)
        self.probabilities = powers / sums[:, None]
        hits = outputs.argmax(1) == labels
        return Result(np.log(sums) - outputs[self.of_labels], hits)

    def backward(self, global_batch_size: int) -> Array:
        """Return the gradient of the mean loss by the outputs: (softmax - one-hot) ÷ size.

        The mean is over the *global* batch: for any shares of the ranks, the gradients need only be
        summed.
        """
        gradient = self.probabilities.copy()
        gradient[self.of_labels] -= 1
        gradient /= global_batch_size
        return gradient


class Network:
    """Linear layers, an activation between each two, and the loss at the end."""

    def __init__(
        self,
        parts: Sequence[Part],
        activation: str,
        *,
        seed: int,
        dtype: str,
        make_layer: Any = Linear,
    ) -> None:
        """parts: this rank's parts of the layers. make_layer: called as `Linear`."""
        initial = np.concatenate([part.initial(seed) for part in parts])
        self.parameters: Array = initial.astype(dtype)
        self.gradients = np.zeros_like(self.parameters)
        self.modules: list[Any] = []
        for place, part in zip(places(parts), parts, strict=True):
            own = self.parameters[place], self.gradients[place]
            if self.modules:
                self.modules.append(ACTIVATIONS[activation]())
            self.modules.append(make_layer(part, *own, is_first=not self.modules))
        self.loss = SoftmaxCrossEntropy()

    def forward(self, inputs: Array, labels: Array) -> Result:
        """inputs: (n, width); labels: (n,); n may be 0."""
        for module in self.modules:
            inputs = module.forward(inputs)
        return self.loss.forward(inputs, labels)

    def backward(self, global_batch_size: int) -> None:
        """Fill `gradients` with those of the samples of the last `forward`."""
        gradient = self.loss.backward(global_batch_size)
        for module in reversed(self.modules):
            gradient = module.backward(gradient)


def places(parts: Sequence[Part]) -> Iterator[slice]:
    """Yield the place of each part in a vector of all."""
    start = 0
    for part in parts:
        yield slice(start, start + part.size)
        start += part.size


class Momentum:
    """velocity ← momentum · velocity + gradient; parameters ← parameters - lr · velocity.

    It works element by element, so a rank may update any part.
    Source: Polyak 1964, doi:10.1016/0041-5553(64)90137-5, as PyTorch's SGD writes it.
    """

    def __init__(self, parameters: Array, *, lr: float, momentum: float) -> None:
        self.parameters, self.lr, self.momentum = parameters, lr, momentum
        self.velocity = np.zeros_like(parameters)

    def step(self, gradients: Array) -> None:
        """Update the parameters. gradients: as many as parameters."""
        self.velocity *= self.momentum
        self.velocity += gradients
        self.parameters -= self.lr * self.velocity
