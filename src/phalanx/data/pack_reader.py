"""Reading, decoding, augmenting and normalising one rank's samples of a batch. No torch, so that a
reader process starts fast."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.augment import augmented
from phalanx.data.packed.buffer_pool import BufferPool
from phalanx.data.packed.pack import Pack
from phalanx.data.sample_cache import Rows, SampleCache
from phalanx.data.staging.staged_view import StagedView
from phalanx.errors import UserError

INPUTS, TARGETS = "inputs", "targets"

CACHED_BYTES = 2**18
"""What is worked on at once."""


class Asked(NamedTuple):
    """Samples of one split."""

    split: str
    samples: NDArray[np.int64]
    epoch: int = 0


class Fetched(NamedTuple):
    """Undamaged samples, in the order of the request."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    damaged: NDArray[np.int64]
    """Numbers of the damaged samples, which are left out."""


class Preparation(NamedTuple):
    """Preprocessing of inputs: shape, dtype, normalisation, augmentation."""

    shape: tuple[int, ...]
    """Of a sample."""
    dtype: str
    means: list[float] | None
    """One for all values, or one for each of the first dim as it was packed; None: values are
    taken as they are."""
    deviations: list[float] | None
    packed_dims: int
    """Dims of a sample as it was packed."""
    num_classes: int
    augment_seed: int | None
    """None: training images are as they were packed."""


class SplitReader:
    """Reads one split of a pack. A reader process has a copy of it, with a pack of its own."""

    def __init__(
        self,
        pack: Pack,
        preparation: Preparation,
        *,
        cache_bytes: int = 0,
        staged: StagedView | None = None,
    ) -> None:
        self._pack, self._preparation, self._staged = pack, preparation, staged
        self._cache_bytes = cache_bytes
        self._cache = SampleCache(pack.num_samples, cache_bytes)
        self._buffers = BufferPool()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._pack, self._preparation, self._cache_bytes, self._staged)

    def read(self, asked: Asked) -> Fetched:
        """Raises: DamagedError where damaged samples stop the run; UserError for a target that is
        no class."""
        if self._staged is not None:
            self._staged.apply(self._pack)
        samples = asked.samples
        inputs, targets = self._rows(samples)
        lost = self._pack.damaged_of(samples)
        damaged = samples[lost]
        if len(damaged):
            samples, inputs, targets = samples[~lost], inputs[~lost], targets[~lost]
        self._check(samples, targets)
        prepared = self._prepared(inputs, samples, asked)
        return Fetched(prepared, targets.astype(np.int64, copy=False), damaged)

    def _rows(self, samples: NDArray[np.int64]) -> Rows:
        slots = self._cache.find(samples)
        missing = slots < 0
        if missing.all():
            rows = self._read(samples)
            self._cache.keep(*self._whole(samples, rows))
            return rows
        found = self._cache.take(slots[~missing])
        if not missing.any():
            return found
        rows = self._read(samples[missing])
        self._cache.keep(*self._whole(samples[missing], rows))
        inputs, targets = (np.empty((len(samples), *v.shape[1:]), v.dtype) for v in rows)
        for out, old, new in zip((inputs, targets), found, rows, strict=True):
            out[~missing], out[missing] = old, new
        return inputs, targets

    def _read(self, samples: NDArray[np.int64]) -> Rows:
        try:
            return self._pack.read(INPUTS, samples), self._pack.read(TARGETS, samples)
        except UserError:
            # A shard that was staged may have gone since it was looked for: once more, from the
            # pack itself, whose own faults are then told.
            if self._staged is None or not self._staged.reset(self._pack):
                raise
            return self._pack.read(INPUTS, samples), self._pack.read(TARGETS, samples)

    def _whole(self, samples: NDArray[np.int64], rows: Rows) -> tuple[NDArray[np.int64], Rows]:
        """Without the damaged ones."""
        lost = self._pack.damaged_of(samples)
        if not lost.any():
            return samples, rows
        return samples[~lost], (rows[0][~lost], rows[1][~lost])

    def _check(self, samples: NDArray[np.int64], targets: NDArray[Any]) -> None:
        classes = self._preparation.num_classes
        if targets.size and not 0 <= targets.min() <= targets.max() < classes:
            flat = targets.reshape(len(targets), -1)
            row = int(np.argmax(((flat < 0) | (flat >= classes)).any(axis=1)))
            wrong = flat[row][(flat[row] < 0) | (flat[row] >= classes)][0]
            raise UserError(
                f"{self._pack.folder}: the target of sample {samples[row]} is {wrong}, but there "
                f"are {classes} classes, from 0"
            )

    def _prepared(
        self, inputs: NDArray[Any], samples: NDArray[np.int64], asked: Asked
    ) -> NDArray[Any]:
        wanted = self._preparation
        inputs = inputs.reshape(len(inputs), *wanted.shape)
        if wanted.augment_seed is not None and asked.split == "train":
            inputs = augmented(inputs, samples, seed=wanted.augment_seed, epoch=asked.epoch)
        if wanted.means is None or wanted.deviations is None:
            return inputs.astype(wanted.dtype, order="C", copy=False)
        by_channel = (-1, *(1,) * (wanted.packed_dims - 1))
        scales = 1 / np.array([deviation or 1.0 for deviation in wanted.deviations])
        shifts = np.array(wanted.means) * scales
        out = self._buffers.empty(inputs.shape, np.dtype(wanted.dtype))
        _normalise(
            inputs,
            scales.astype(wanted.dtype).reshape(by_channel),
            shifts.astype(wanted.dtype).reshape(by_channel),
            out,
        )
        return out


class PackReaders:
    """Reads any split: what a pool of readers is given."""

    def __init__(self, splits: dict[str, SplitReader]) -> None:
        self._splits = splits

    def __call__(self, asked: Asked) -> Fetched:
        return self._splits[asked.split].read(asked)


def _normalise(
    inputs: NDArray[Any], scales: NDArray[Any], shifts: NDArray[Any], out: NDArray[Any]
) -> None:
    """A few samples at a time, which stay in the cache from one pass to the next."""
    step = max(1, CACHED_BYTES // max(1, out[:1].nbytes))
    for start in range(0, len(out), step):
        rows = out[start : start + step]
        np.copyto(rows, inputs[start : start + step], casting="unsafe")
        rows *= scales
        rows -= shifts


def _made(
    pack: Pack, preparation: Preparation, cache_bytes: int, staged: StagedView | None
) -> SplitReader:
    return SplitReader(pack, preparation, cache_bytes=cache_bytes, staged=staged)
