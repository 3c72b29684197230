"""Working memory of a compressor, allocated once and used for every bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of


class Scratch:
    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def bytes(self, name: str, count: int) -> Tensor:
        """Return (count,) uint8; its content stays until the name is used again."""
        memory = self._memory.get(name)
        if memory is None or len(memory) < count:
            memory = self._memory[name] = torch.empty(count, dtype=torch.uint8)
        return memory[:count]

    def floats(self, name: str, count: int) -> Tensor:
        """Return (count,) float32."""
        return self.bytes(name, 4 * count).view(torch.float32)

    def parts(self, name: str, num_bytes: Sequence[int]) -> list[Tensor]:
        """Return one (n,) uint8 for each n, each at the beginning of a cache line."""
        starts = aligned_starts_of(num_bytes, CACHE_LINE_BYTES)
        whole = self.bytes(name, starts[-1])
        return [whole[start : start + n] for start, n in zip(starts, num_bytes, strict=False)]

    @contextmanager
    def as_float32(self, values: Tensor) -> Iterator[Tensor]:
        """Give `values` themselves, or, where they are of another type, a copy that is copied
        back."""
        if values.dtype == torch.float32:
            yield values
            return
        copy = self.floats("float32", len(values))
        copy.copy_(values)
        yield copy
        values.copy_(copy)


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, in one pass; a sum that overflows counts as not
    finite."""
    return bool(torch.isfinite(values.sum()))
