"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import numpy as np

from phalanx.scratch.arrays import Array


class Momentum:
    """velocity ← momentum · velocity + gradient; parameters ← parameters - lr · velocity.

    Acts on the whole vector of a network or on a part of it: the arithmetic is element by element,
    so a rank may update whatever part it has been given.
    Source: Polyak 1964, doi:10.1016/0041-5553(64)90137-5, as PyTorch's SGD writes it.
    """

    def __init__(self, parameters: Array, *, lr: float, momentum: float) -> None:
        self.parameters, self.lr, self.momentum = parameters, lr, momentum
        self.velocity = np.zeros_like(parameters)

    def step(self, gradients: Array) -> None:
        """gradients: as many as there are parameters; written over."""
        self.velocity *= self.momentum
        self.velocity += gradients
        np.multiply(self.velocity, self.lr, out=gradients)
        self.parameters -= gradients
