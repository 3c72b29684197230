"""Buffer pool for large outputs: fresh memory costs as much as reading the data into it, because
the kernel zeroes every page on first touch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_BYTES = 2**20  # the allocator keeps smaller ones itself
LARGEST_BYTES = 2**29
MAX_FREE = 8
"""Free blocks kept. Four prefetched batches and one in use all return at the end of an epoch."""


class BufferPool:
    """Pool of arrays whose memory is reused once neither the array nor a view of it is referenced,
    for arrays of the same size down to half of it. Thread-safe."""

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=MAX_FREE)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Like numpy.empty."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if not SMALLEST_BYTES <= num_bytes <= LARGEST_BYTES:
            return np.empty(shape, dtype)
        block = self._reuse(num_bytes)
        if block is None:
            block = np.empty(num_bytes, np.uint8)
        return np.asarray(_Lease(block, num_bytes, self._free)).view(dtype).reshape(shape)

    def _reuse(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Return a free block of fitting size, or None. No lock: a finalizer may return blocks at
        any time, even during this call."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:
                return None
            if num_bytes <= block.nbytes <= 2 * num_bytes:
                return block
            self._free.append(block)
        return None


class _Lease:
    """Owner of an array's memory; returns the block to the free list when the array dies."""

    def __init__(
        self, block: NDArray[np.uint8], num_bytes: int, free: deque[NDArray[np.uint8]]
    ) -> None:
        self._block = block
        self._free = free
        self.__array_interface__ = block[:num_bytes].__array_interface__

    def __del__(self) -> None:
        self._free.append(self._block)
