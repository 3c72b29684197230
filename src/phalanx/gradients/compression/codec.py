"""Codecs between float32 values and fewer bytes.

Every codec has a fixed number of bytes for a number of values, so that each rank knows the size of
its peers' messages. What is not finite stays so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from phalanx.gradients.compression.coding import BLOCK, add_int8, encode_int8
from phalanx.torch_backend.tensors import buffer_of


class Codec(ABC):
    unit = 1
    """Values that are encoded together: vectors are sharded at multiples of it."""

    has_residual = False
    """True if the encoding error is kept and added next time."""

    @abstractmethod
    def num_bytes(self, count: int) -> int:
        """Return the encoded size of `count` values; a multiple of 4."""

    @abstractmethod
    def encode(self, values: Tensor, encoded: Tensor, residual: Tensor) -> None:
        """Encode `values`, which are overwritten, into `encoded`.

        values: (n,) float32; coded: (num_bytes(n),) uint8.
        residual: (n,) float32, added before and replaced by the new error; (0,) without error
        feedback.
        """

    @abstractmethod
    def decode(self, encoded: Tensor, values: Tensor, *, accumulate: bool) -> None:
        """Decode into `values`, (n,) float32; adds: add to them instead."""


class Cast(Codec):
    """Codec that stores the values in a type: float32 themselves; bfloat16, the range of float32
    with 8 bits of precision, with an error of at most 2⁻⁸ of each value."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def num_bytes(self, count: int) -> int:
        return _padded(self._dtype.itemsize * count)

    def encode(self, values: Tensor, encoded: Tensor, residual: Tensor) -> None:  # noqa: ARG002
        encoded.view(self._dtype)[: len(values)].copy_(values)

    def decode(self, encoded: Tensor, values: Tensor, *, accumulate: bool) -> None:
        stored = encoded.view(self._dtype)[: len(values)]
        if accumulate:
            values.add_(stored)
        else:
            values.copy_(stored)


class ScaledFloat16(Codec):
    """float16 times a power of two: 11 bits of precision; an error of at most 2⁻¹¹ of each value
    that is not below 2⁻²⁹ of the largest.

    The scale brings the largest value to [2¹⁴, 2¹⁵], where nothing overflows. It is sent before
    the values.
    """

    def num_bytes(self, count: int) -> int:
        return 4 + _padded(2 * count)

    def encode(self, values: Tensor, encoded: Tensor, residual: Tensor) -> None:  # noqa: ARG002
        scale = _scale(float(values.abs().max()) if len(values) else 0.0)
        encoded[:4].view(torch.float32).fill_(scale)
        encoded[4:].view(torch.float16)[: len(values)].copy_(values.mul_(1 / scale))

    def decode(self, encoded: Tensor, values: Tensor, *, accumulate: bool) -> None:
        scale = float(encoded[:4].view(torch.float32))
        halves = encoded[4:].view(torch.float16)[: len(values)]
        if accumulate:
            values.add_(halves.float(), alpha=scale)
        else:
            torch.mul(halves.float(), scale, out=values)


class BlockInt8(Codec):
    """int8 with a scale for each block of 256 values, and error feedback: an error of at most
    1/254 of the largest of the block, corrected later.

    Source: error feedback is of Seide et al. 2014, doi:10.21437/Interspeech.2014-274; that it
    converges: Karimireddy et al. 2019, arXiv:1901.09847.
    """

    unit = BLOCK
    has_residual = True

    def num_bytes(self, count: int) -> int:
        return 4 * -(-count // BLOCK) + _padded(count)

    def encode(self, values: Tensor, encoded: Tensor, residual: Tensor) -> None:
        encode_int8(*map(buffer_of, (values, residual, *self._split(encoded, len(values)))))

    def decode(self, encoded: Tensor, values: Tensor, *, accumulate: bool) -> None:
        add_int8(*map(buffer_of, (*self._split(encoded, len(values)), values)), adds=accumulate)

    def _split(self, encoded: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Scales and codes."""
        codes_at = 4 * -(-count // BLOCK)
        return encoded[:codes_at].view(torch.float32), encoded[codes_at:].view(torch.int8)[:count]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 4) * 4


def _scale(largest: float) -> float:
    """A power of two by which `largest` is 2¹⁴ to 2¹⁵ times; 1 where it is 0 or not finite."""
    if not largest or not math.isfinite(largest):
        return 1.0
    return math.ldexp(1.0, max(math.frexp(largest)[1] - 15, -120))
