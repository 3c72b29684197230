"""Loops that code gradients in fewer bytes: in C where it was built, else in NumPy, to the same
bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.kernels import compiled

BLOCK = 256
"""Values with one scale."""

_TINY = 1e-30
"""A block whose values are all smaller is sent as zeros; its inverse scale would not be finite."""


_LARGEST_SCALE = np.float32(float.fromhex("0x1.020406p+121"))
"""127 of it are finite."""


def encode_int8(values: Buffer, kept: Buffer, scales: Buffer, codes: Buffer) -> None:
    """codes and scales become values + kept, and kept what was lost by that.

    values, kept: (n,) float32; scales: (⌈n/BLOCK⌉,) float32; codes: (n,) int8. A block with a
    value that is not finite has a scale that is none, and nothing of it is kept.
    """
    module = compiled()
    if module is not None:
        module.encode_int8(
            values.address, kept.address, scales.address, codes.address, values.count
        )
        return
    with np.errstate(all="ignore"):
        wanted = _blocks(values.array() + kept.array())
        largest = np.abs(wanted).max(axis=1, initial=0.0)
        is_finite = np.isfinite(largest)
        is_told = is_finite & (largest >= _TINY)
        scale = np.minimum(largest / np.float32(127), _LARGEST_SCALE)
        scale = np.where(is_told, scale, np.float32(0))
        inverse = np.where(is_told, np.float32(127) / largest, np.float32(0))
        numbers = np.rint(wanted * inverse[:, None])
        lost = np.where(is_finite[:, None], wanted - numbers * scale[:, None], np.float32(0))
        scales.array()[:] = np.where(is_finite, scale, np.float32(np.nan))
        rounded = np.where(is_finite[:, None], numbers, np.float32(0)).astype(np.int8)
    codes.array()[:] = rounded.reshape(-1)[: codes.count]
    kept.array()[:] = lost.reshape(-1)[: kept.count]


def add_int8(scales: Buffer, codes: Buffer, total: Buffer, *, adds: bool) -> None:
    """total, (n,) float32, becomes what is coded; adds: is increased by it."""
    module = compiled()
    if module is not None:
        module.add_int8(scales.address, codes.address, total.address, total.count, adds)
        return
    told = _blocks(codes.array().astype(np.float32)) * scales.array()[:, None]
    flat = told.reshape(-1)[: total.count]
    if adds:
        with np.errstate(all="ignore"):  # sums of gradients may overflow, as in C
            total.array()[:] += flat
    else:
        total.array()[:] = flat


def select_largest(values: Buffer, positions: Buffer) -> None:
    """positions, (k,) int32, become those of the k largest magnitudes among values, (n,) float32,
    in increasing order. Of equal ones the first are taken; a NaN is larger than infinity."""
    module = compiled()
    if module is not None:
        module.select_largest(values.address, values.count, positions.address, positions.count)
        return
    bits = values.array().view(np.uint32) & np.uint32(0x7FFFFFFF)
    k = positions.count
    threshold = np.partition(bits, values.count - k)[values.count - k]
    above = np.flatnonzero(bits > threshold)
    equal = np.flatnonzero(bits == threshold)[: k - len(above)]
    positions.array()[:] = np.sort(np.concatenate([above, equal]))


def _blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(⌈n/BLOCK⌉, BLOCK), zeros at the end."""
    count = -(-len(values) // BLOCK)
    padded = np.zeros(count * BLOCK, np.float32)
    padded[: len(values)] = values
    return padded.reshape(count, BLOCK)
