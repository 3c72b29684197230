"""Samples kept in memory once they have been read, as many as fit.

None is ever given up for another: every sample is needed once an epoch, in a new order each time,
so whichever are kept, the share that is found is the share that fits.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = tuple[NDArray[Any], NDArray[Any]]


class SampleCache:
    """Cache of decoded inputs and targets; thread-safe."""

    def __init__(self, num_samples: int, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._slots = np.full(num_samples if most_bytes else 0, -1, np.int64)
        self._lock = threading.Lock()
        self._used = 0
        self._kept: Rows | None = None

    def find(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) where each is kept; -1: it is not."""
        if not self._most_bytes:
            return np.full(len(samples), -1, np.int64)
        found: NDArray[np.int64] = self._slots[samples]
        return found

    def take(self, slots: NDArray[np.int64]) -> Rows:
        """(n, …) inputs and targets of what `find` has found."""
        assert self._kept is not None, "something was found"
        inputs, targets = self._kept
        return inputs[slots], targets[slots]

    def keep(self, samples: NDArray[np.int64], rows: Rows) -> None:
        """As many of them as there is room for."""
        if not self._most_bytes or not len(samples):
            return
        with self._lock:
            kept = self._kept = self._kept or self._room(rows)
            start, self._used = self._used, min(len(kept[0]), self._used + len(samples))
            stop = self._used
        for place, values in zip(kept, rows, strict=True):
            place[start:stop] = values[: stop - start]
        self._slots[samples[: stop - start]] = np.arange(start, stop)

    def _room(self, rows: Rows) -> Rows:
        """Memory that the system gives only as it is filled."""
        sample_bytes = sum(max(1, values[0].nbytes) for values in rows)
        number = min(len(self._slots), self._most_bytes // sample_bytes)
        inputs, targets = (np.empty((number, *v.shape[1:]), v.dtype) for v in rows)
        return inputs, targets
