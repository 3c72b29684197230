"""Array operations with which the kernels of gradients are compared, bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.gradients.optimizer_update import OptimizerKind

Array = NDArray[Any]


def apply_update(
    kind: OptimizerKind,
    coefficients: Sequence[float],
    parameters: Array,
    states: Sequence[Array],
    gradients: Array,
) -> None:
    """Update parameters and states, (n,) of float32 or float64, in place: the operations of
    `csrc/fused.c`, in its order."""
    if kind in (OptimizerKind.SGD, OptimizerKind.SGD_MOMENTUM):
        rate, decay, momentum = coefficients
        change = gradients + decay * parameters
        if kind is OptimizerKind.SGD_MOMENTUM:
            np.add(momentum * states[0], change, out=states[0])
            change = states[0]
        parameters -= rate * change
        return
    step, decay, new1, old2, new2, root, epsilon = coefficients
    first, second = states
    if kind is OptimizerKind.ADAM:
        gradients = gradients + decay * parameters
    else:
        parameters *= decay
    first += new1 * (gradients - first)
    np.add(old2 * second, new2 * gradients * gradients, out=second)
    parameters -= step * first / (np.sqrt(second) * root + epsilon)
