"""Arrays, and memory for them that is used again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
Labels = NDArray[np.integer[Any]]
Bytes = NDArray[np.uint8]


class Rows:
    """Memory for matrices of one width and of any number of rows.

    A training step makes the same matrices as the one before it. Asking the system for fresh
    memory each time costs more than writing to memory that is still in the processor's cache.
    """

    def __init__(self, width: int, dtype: DTypeLike) -> None:
        self._memory = np.empty((0, width), dtype)

    def of(self, rows: int) -> NDArray[Any]:
        """(rows, width), contiguous, with whatever it held before; valid until the next call."""
        if rows > len(self._memory):
            self._memory = np.empty((rows, self._memory.shape[1]), self._memory.dtype)
        return self._memory[:rows]
