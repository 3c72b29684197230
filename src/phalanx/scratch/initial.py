"""Random numbers that depend on (seed, name) alone: every rank of every layout draws the same."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the generator for `name`. Two layers of one shape get different numbers."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


def initial_weight(inputs: int, outputs: int, *, seed: int, name: str) -> NDArray[Any]:
    """(inputs, outputs) float64 from U(-b, b) with b = 1 ÷ √inputs.

    A rank that keeps a part of a layer draws the whole and cuts its part out; float32 weights are
    the rounded float64 ones.
    """
    return _uniform((inputs, outputs), inputs, seed, f"{name}.weight")


def initial_bias(inputs: int, outputs: int, *, seed: int, name: str) -> NDArray[Any]:
    """(outputs,) float64 from the same range."""
    return _uniform((outputs,), inputs, seed, f"{name}.bias")


def _uniform(shape: tuple[int, ...], inputs: int, seed: int, name: str) -> NDArray[Any]:
    bound = float(inputs) ** -0.5
    drawn: NDArray[Any] = generator(seed, name).uniform(-bound, bound, shape)
    return drawn
