"""In-memory cache of samples, filled until it is full.

There is no eviction: every sample is needed once an epoch, in a new order each time, so the hit
rate is the fraction of samples that fit, whichever are cached.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = tuple[NDArray[Any], NDArray[Any]]


class SampleCache:
    """Cache of decoded inputs and targets; thread-safe."""

    def __init__(self, num_samples: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._slots = np.full(num_samples if max_bytes else 0, -1, np.int64)
        self._lock = threading.Lock()
        self._used = 0
        self._rows: Rows | None = None

    def find(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each sample, (n,); -1: not cached."""
        if not self._max_bytes:
            return np.full(len(samples), -1, np.int64)
        found: NDArray[np.int64] = self._slots[samples]
        return found

    def get(self, slots: NDArray[np.int64]) -> Rows:
        """Return inputs and targets, (n, …), of slots that `find` returned."""
        assert self._rows is not None, "some sample is cached"
        inputs, targets = self._rows
        return inputs[slots], targets[slots]

    def add(self, samples: NDArray[np.int64], rows: Rows) -> None:
        """Cache as many of the samples as there is room for."""
        if not self._max_bytes or not len(samples):
            return
        with self._lock:
            cached = self._rows = self._rows or self._allocate(rows)
            start, self._used = self._used, min(len(cached[0]), self._used + len(samples))
            stop = self._used
        for target, values in zip(cached, rows, strict=True):
            target[start:stop] = values[: stop - start]
        self._slots[samples[: stop - start]] = np.arange(start, stop)

    def _allocate(self, rows: Rows) -> Rows:
        """Allocate the rows; pages are committed only as they are written."""
        sample_bytes = sum(max(1, values[0].nbytes) for values in rows)
        number = min(len(self._slots), self._max_bytes // sample_bytes)
        inputs, targets = (np.empty((number, *v.shape[1:]), v.dtype) for v in rows)
        return inputs, targets
