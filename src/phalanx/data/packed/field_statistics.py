"""Mean and standard deviation of packed fields, estimated from evenly spaced samples."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack

Numbers = NDArray[np.float64]

MAX_SAMPLED_BYTES = 64 * 2**20
MAX_SAMPLES = 20_000
CHUNK_BYTES = 2**20


def measure_fields(folder: Path, names: Collection[str]) -> list[Field]:
    """Return the fields of a pack, those of `names` with their mean and deviation: for each channel
    of an image, each column of float features, else one of all values. Fields whose samples differ
    in shape are left as they are."""
    pack = Pack(folder)
    try:
        return [
            _measured(pack, field) if field.name in names and _can_be(field) else field
            for field in pack.index.fields
        ]
    finally:
        pack.close()


def _measured(pack: Pack, field: Field) -> Field:
    assert field.shape
    sample_size = max(1, int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize)
    num_samples = min(pack.num_samples, MAX_SAMPLES, max(1, MAX_SAMPLED_BYTES // sample_size))
    chosen = np.linspace(0, pack.num_samples - 1, num_samples).round().astype(np.int64)
    values = pack.read(field.name, chosen)
    mean, deviation = _moments(values, _axes(field))
    return msgspec.structs.replace(field, mean=mean.tolist(), deviation=deviation.tolist())


def _axes(field: Field) -> tuple[int, ...]:
    """Return the axes of (n, …) to average over."""
    assert field.shape
    is_features = len(field.shape) == 1 and np.dtype(field.dtype).kind == "f"
    if is_features:
        return (0,)
    num_dims = 1 + len(field.shape)
    return tuple(axis for axis in range(num_dims) if not (num_dims == 4 and axis == 1))


def _moments(values: NDArray[Any], axes: tuple[int, ...]) -> tuple[Numbers, Numbers]:
    """Return mean and deviation in float64, chunk by chunk, the mean first, so that a large mean
    costs no precision."""
    num_chunks = -(-values.nbytes // CHUNK_BYTES)
    chunks = np.array_split(values, max(1, min(len(values), num_chunks)))
    num_values = math.prod(values.shape[axis] for axis in axes)
    total = partial(np.sum, axis=axes, dtype=np.float64, keepdims=True)
    mean = sum(map(total, chunks)) / num_values
    squares = sum(total((chunk - mean) ** 2) for chunk in chunks)
    return np.atleast_1d(np.squeeze(mean)), np.atleast_1d(np.squeeze(squares / num_values)) ** 0.5


def _can_be(field: Field) -> bool:
    has_values = field.shape is not None and len(field.shape) > 0 and 0 not in field.shape
    return has_values and np.dtype(field.dtype).kind in "biuf"
