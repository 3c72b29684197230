"""Loops over elements, in NumPy: what `kernels.py` uses where there is no C, and its oracle.

Work goes in pieces of a fixed size, so that the running result stays in the core's cache however
long the buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp, check_operation
from phalanx.comm.layout import chunks

CHUNK_BYTES = 128 * 1024  # size of the running result; with one term, half of a small L2

Array = NDArray[Any]

_FUNCTIONS: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,  # a NaN of any rank stays
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}

# Truth values: NumPy's `multiply`, `minimum` and `bitwise_and` of bool are all "and".


def reduce_terms(
    terms: Sequence[Buffer], output: Buffer, op: ReduceOp, divisor: float = 1.0
) -> None:
    """output[i] = (terms[0][i] op terms[1][i] op …) / divisor, from the first term to the last.

    terms: at least one; all of output's count and dtype; output may be one of them, and must not
    overlap another in part. Half types are accumulated in float32, divided there and rounded once,
    to the nearest even; a NaN stays a NaN. Integers wrap around, and are divided towards zero.
    Raises: TypeError when elements of the dtype have no such reduction.
    """
    check_operation(output.dtype, op)
    function = _FUNCTIONS[op]
    step = max(1, CHUNK_BYTES // max(4, output.dtype.itemsize))
    sources = [_storage(term) for term in terms]
    target = _storage(output)
    with np.errstate(all="ignore"):  # infinities and wrapping are results, not accidents
        for chunk in chunks(output.count, step):
            total = widened(sources[0][chunk], output.dtype)
            for source in sources[1:]:
                function(total, _wide(source[chunk], output.dtype), out=total)
            target[chunk] = narrowed(divided(total, divisor), output.dtype)


def widen(half: Buffer, wide: Buffer) -> None:
    """wide (float32) becomes the values of half, exactly."""
    with np.errstate(all="ignore"):
        wide.array()[:] = _wide(_storage(half), half.dtype)


def narrow(wide: Buffer, half: Buffer, divisor: float = 1.0) -> None:
    """half becomes wide (float32) / divisor, rounded once to the nearest even."""
    source, target = wide.array(), _storage(half)
    with np.errstate(all="ignore"):
        for chunk in chunks(half.count, CHUNK_BYTES // 4):
            target[chunk] = narrowed(divided(source[chunk], divisor), half.dtype)


def copy(source: Buffer, target: Buffer) -> None:
    """The same bytes; the two may be the same memory."""
    if source.address != target.address:
        target.bytes()[:] = source.bytes()


def _storage(buffer: Buffer) -> Array:
    """(count,) view; bfloat16, which NumPy does not know, as its bits."""
    return buffer.array() if buffer.dtype.numpy is not None else buffer.bytes().view(np.uint16)


def _wide(stored: Array, dtype: DType) -> Array:
    """The elements in the type that they are accumulated in; may be `stored` itself."""
    if not dtype.is_half:
        return stored
    if dtype.numpy is not None:
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def widened(stored: Array, dtype: DType) -> Array:
    """The same, always in memory of its own."""
    return _wide(stored, dtype) if dtype.is_half else stored.copy()


def narrowed(wide: Array, dtype: DType) -> Array:
    """Elements as they are stored, from those that they are accumulated in."""
    if not dtype.is_half:
        return wide
    if dtype.numpy is not None:
        return wide.astype(dtype.numpy)
    bits = wide.view(np.uint32)
    # Half of the last kept digit is added, a little less where that digit is even. Adding could
    # carry a NaN over into a number, so NaNs are cut instead, with the bit set that makes one.
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    kept = np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded)
    return kept.astype(np.uint16)


def divided(total: Array, divisor: float) -> Array:
    """total / divisor in total's own type; integers towards zero; truth values as they are."""
    if divisor == 1.0 or total.dtype == np.bool_:
        return total
    if total.dtype.kind == "c":  # part by part: NumPy would go through a complex quotient
        parts = total.view(total.real.dtype)
        quotients: Array = np.divide(parts, divisor, dtype=parts.dtype)
        return quotients.view(total.dtype)
    if total.dtype.kind == "f":
        return np.divide(total, divisor, dtype=total.dtype)
    if not float(divisor).is_integer():
        return np.trunc(total / divisor).astype(total.dtype)
    whole = int(divisor)
    if not np.iinfo(total.dtype).min <= whole <= np.iinfo(total.dtype).max:
        return np.trunc(total / divisor).astype(total.dtype)
    quotient, rest = np.divmod(total, total.dtype.type(whole))  # rounded down
    rounded_up: Array = quotient + ((quotient < 0) & (rest != 0)).astype(total.dtype)
    return rounded_up
