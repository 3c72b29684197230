"""Softmax and cross-entropy in one, because together they have a simple gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.scratch.arrays import Array, Labels


class BatchResult(NamedTuple):
    """Loss and correctness of each sample."""

    losses: Array  # (n,)
    hits: NDArray[np.bool_]  # (n,): whether the highest output is the label's

    def part(self, samples: slice) -> BatchResult:
        return BatchResult(self.losses[samples], self.hits[samples])

    @property
    def loss_sum(self) -> float:
        return float(self.losses.sum())

    @property
    def correct(self) -> int:
        return int(np.count_nonzero(self.hits))


class SoftmaxCrossEntropy:
    """loss = -log(softmax(outputs)[label])."""

    def __init__(self) -> None:
        self._probabilities: Array = np.empty((0, 0))
        self._of_labels: tuple[NDArray[Any], Labels] = (np.empty(0, np.int64), np.empty(0, int))

    def forward(self, outputs: Array, labels: Labels) -> BatchResult:
        """outputs: (n, classes), written over; labels: (n,)."""
        hits = outputs.argmax(1) == labels
        # Row by row: the softmax is the same, e to the power of the largest is 1, and nothing
        # overflows. The maximum of the whole batch would take all of a small row below e⁻¹⁰⁰.
        outputs -= outputs.max(1, keepdims=True)
        of_labels = (np.arange(len(labels)), labels)
        chosen = outputs[of_labels]
        np.exp(outputs, out=outputs)
        sums = outputs.sum(1)
        losses = np.log(sums)
        losses -= chosen
        outputs /= sums[:, None]
        self._probabilities, self._of_labels = outputs, of_labels
        return BatchResult(losses, hits)

    def backward(self, global_batch_size: int) -> Array:
        """Return the gradient of the mean loss by the outputs: (softmax - one-hot) ÷ size.

        The mean is over the global batch: every rank divides its local samples by its size, so
        gradients of ranks need only be summed, however unevenly the samples are shared.
        """
        gradient = self._probabilities
        gradient[self._of_labels] -= 1
        gradient /= global_batch_size
        return gradient
