"""Top-k sparsification with error feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Size, Tensor

from phalanx.gradients.compression.coding import select_largest
from phalanx.gradients.compression.compressor import (
    Compressor,
    ReduceBackend,
    Scratch,
    count_of,
    is_finite,
)
from phalanx.torch_backend.tensors import buffer_of


class TopK(Compressor):
    """Each rank sends the ⌈fraction · n⌉ values of the largest magnitude of a bucket, with
    positions.

    Of equal values the first ones are sent. Every rank receives all and sums in the order of the
    ranks. What a rank did not send it adds to its next gradient.

    Cost:   (p−1) · 8 bytes a value that is sent: it grows with the ranks, as an all-reduce does
            not, and pays while fraction · p is small.
    Source: Stich et al. 2018, arXiv:1809.07599, for the error feedback; Lin et al. 2018,
            arXiv:1712.01887, for how few will do (their momentum correction and warm-up are not
            in here).
    """

    name = "topk"
    has_state = True
    takes_slices = True

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self._fraction = fraction
        self._scratch = Scratch()
        self._residuals: dict[int, Tensor] = {}

    def drop_state(self) -> None:
        self._residuals.clear()

    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        if backend.size == 1 or not len(values):
            return
        with self._scratch.as_float32(values) as working:
            self._reduce(number, working, backend)

    def _reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        residual = self._residuals.get(number)
        if residual is None:
            residual = self._residuals[number] = torch.zeros_like(values)
        residual += values
        k = self.num_sent(len(values))
        part = self._scratch.bytes("part", 8 * k)
        positions, chosen = _split(part)
        select_largest(buffer_of(residual), buffer_of(positions))
        places = positions.long()
        torch.index_select(residual, 0, places, out=chosen)
        residual.index_fill_(0, places, 0.0)
        parts = self._scratch.parts("parts", [8 * k] * backend.size)
        backend.all_gather(parts, part)
        values.zero_()
        for positions, chosen in map(_split, parts):
            values.index_add_(0, positions, chosen)
        if not is_finite(values):
            residual.zero_()

    def num_sent(self, count: int) -> int:
        """Return how many of a bucket's `count` values are sent."""
        return math.ceil(self._fraction * count)

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:  # noqa: ARG002
        return (num_ranks - 1) * 8 * self.num_sent(count_of(shapes))

    def state_dict(self) -> dict[str, Tensor]:
        return {str(number): residual for number, residual in self._residuals.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._residuals = {int(number): tensor for number, tensor in state.items()}


def _split(part: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (k,) int32 positions and (k,) float32 values of an encoded part."""
    half = len(part) // 2
    return part[:half].view(torch.int32), part[half:].view(torch.float32)
