"""Reading, decoding, augmenting and normalising one rank's samples of a batch. No torch, so that a
reader process starts fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.buffer_pool import BufferPool
from phalanx.data.packed.pack import Pack
from phalanx.data.reading.augment import augment
from phalanx.errors import UserError

INPUTS, TARGETS = "inputs", "targets"

POLL_S = 0.5
"""Time between two polls of the folder of staged shards."""

CHUNK_BYTES = 2**18
"""Bytes normalised at once, to stay in the processor's cache."""


class ReadRequest(NamedTuple):
    """Request for samples of one split."""

    split: str
    samples: NDArray[np.int64]
    epoch: int = 0


class ReadResult(NamedTuple):
    """Undamaged samples, in the order of the request."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    damaged: NDArray[np.int64]
    """Numbers of the damaged samples, which are left out."""


class Preparation(NamedTuple):
    """Preprocessing of inputs: shape, dtype, normalisation, augmentation."""

    shape: tuple[int, ...]
    """Shape of a sample."""
    dtype: str
    means: list[float] | None
    """One for all values, or one for each index of the first packed dim; None: values are not
    normalised."""
    deviations: list[float] | None
    packed_dims: int
    """Number of dims of a packed sample."""
    num_classes: int
    """0 of quantities."""
    augment_seed: int | None
    """None: training images are not augmented."""


Rows = tuple[NDArray[Any], NDArray[Any]]


class SampleCache:
    """Cache of decoded inputs and targets, filled until it is full; thread-safe.

    There is no eviction: every sample is needed once an epoch, in a new order each time, so the hit
    rate is the fraction of samples that fit, whichever are cached.
    """

    def __init__(self, num_samples: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._slots = np.full(num_samples if max_bytes else 0, -1, np.int64)
        self._lock = threading.Lock()
        self._used = 0
        self._rows: Rows | None = None

    def read(self, samples: NDArray[np.int64], read: Callable[[NDArray[np.int64]], Rows]) -> Rows:
        """Return inputs and targets of samples, (n, …): those that are cached, and the others as
        `read` returns them."""
        if self._rows is None:
            return read(samples)
        slots = self._slots[samples]
        missing = slots < 0
        if missing.all():
            return read(samples)
        inputs, targets = (values[slots] for values in self._rows)
        if missing.any():
            inputs[missing], targets[missing] = read(samples[missing])
        return inputs, targets

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


class SplitReader:
    """Reader of one split of a pack. A reader process has its own copy, with its own pack."""

    def __init__(
        self,
        pack: Pack,
        preparation: Preparation,
        *,
        cache_bytes: int = 0,
        staged: Path | None = None,
    ) -> None:
        """staged: folder in which shards appear, complete, and vanish while this reader reads."""
        self._pack, self._preparation, self._staged = pack, preparation, staged
        self._cache_bytes = cache_bytes
        self._cache = SampleCache(pack.num_samples, cache_bytes)
        self._buffers = BufferPool()
        self._polled_at, self._changed_at = -POLL_S, 0

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(SplitReader, cache_bytes=self._cache_bytes, staged=self._staged)
        return again, (self._pack, self._preparation)

    def read(self, request: ReadRequest) -> ReadResult:
        """Read and prepare the samples of a request.

        Raises: DamagedError where damaged samples stop the run; UserError for a target that is no
                class.
        """
        self._poll_stage()
        samples = request.samples
        inputs, targets = self._cache.read(samples, self._read)
        is_damaged = self._pack.damaged_of(samples)
        damaged = samples[is_damaged]
        if len(damaged):
            samples, inputs, targets = (v[~is_damaged] for v in (samples, inputs, targets))
        self._check_targets(samples, targets)
        inputs = self._prepare(inputs, samples, request)
        is_float = targets.dtype.kind == "f"
        dtype = self._preparation.dtype if is_float else "int64"
        return ReadResult(inputs, targets.astype(dtype, copy=False), damaged)

    def _read(self, samples: NDArray[np.int64]) -> Rows:
        """Read samples; cache those that are intact."""
        inputs, targets = (self._read_field(name, samples) for name in (INPUTS, TARGETS))
        if self._cache_bytes:
            intact = ~self._pack.damaged_of(samples)
            self._cache.add(samples[intact], (inputs[intact], targets[intact]))
        return inputs, targets

    def _read_field(self, name: str, samples: NDArray[np.int64]) -> NDArray[Any]:
        try:
            return self._pack.read(name, samples)
        except UserError:
            # A staged shard may have been evicted since it was looked for: retry from the pack
            # itself, whose own errors are then raised.
            if self._staged is None:
                raise
            self._changed_at = 0
            self._pack.read_from(None)
            return self._pack.read(name, samples)

    def _poll_stage(self) -> None:
        """Read the shards that are staged now, if the folder has changed. Cost: one comparison
        when no poll is due."""
        if self._staged is None or time.monotonic() - self._polled_at < POLL_S:
            return
        self._polled_at = time.monotonic()
        try:
            changed_at = self._staged.stat().st_mtime_ns
        except OSError:  # nothing is staged
            return
        if changed_at != self._changed_at:
            self._changed_at = changed_at
            self._pack.read_from(self._staged)

    def _check_targets(self, samples: NDArray[np.int64], targets: NDArray[Any]) -> None:
        classes = self._preparation.num_classes
        if classes and targets.size and not 0 <= targets.min() <= targets.max() < classes:
            flat = targets.reshape(len(targets), -1)
            row = int(np.argmax(((flat < 0) | (flat >= classes)).any(axis=1)))
            wrong = flat[row][(flat[row] < 0) | (flat[row] >= classes)][0]
            raise UserError(
                f"{self._pack.folder}: the target of sample {samples[row]} is {wrong}, but there "
                f"are {classes} classes, from 0"
            )

    def _prepare(
        self, inputs: NDArray[Any], samples: NDArray[np.int64], request: ReadRequest
    ) -> NDArray[Any]:
        preparation = self._preparation
        inputs = inputs.reshape(len(inputs), *preparation.shape)
        if preparation.augment_seed is not None and request.split == "train":
            inputs = augment(inputs, samples, seed=preparation.augment_seed, epoch=request.epoch)
        if preparation.means is None or preparation.deviations is None:
            return inputs.astype(preparation.dtype, order="C", copy=False)
        by_channel = (-1, *(1,) * (preparation.packed_dims - 1))
        scales = 1 / np.array([deviation or 1.0 for deviation in preparation.deviations])
        shifts = np.array(preparation.means) * scales
        out = self._buffers.empty(inputs.shape, np.dtype(preparation.dtype))
        _normalise(
            inputs,
            scales.astype(preparation.dtype).reshape(by_channel),
            shifts.astype(preparation.dtype).reshape(by_channel),
            out,
        )
        return out


def _normalise(
    inputs: NDArray[Any], scales: NDArray[Any], shifts: NDArray[Any], out: NDArray[Any]
) -> None:
    """Normalise a few samples at a time, which stay in the cache from one pass to the next."""
    step = max(1, CHUNK_BYTES // max(1, out[:1].nbytes))
    for start in range(0, len(out), step):
        rows = out[start : start + step]
        np.copyto(rows, inputs[start : start + step], casting="unsafe")
        rows *= scales
        rows -= shifts
