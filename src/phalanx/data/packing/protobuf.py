"""Protocol Buffers, as far as messages of known layout are read. No schema, no generated code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """Bytes that are no such message."""


def fields_of_message(content: bytes, known: Mapping[int, type]) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a message, in order; fields that are not `known` are
    passed over.

    known: by number, `bytes` for texts, messages and lists; `int` for varints; `object` for either,
        numbers of fixed size being their bytes.
    Raises: WireError when the bytes are no message, or a field is of another kind.
    """
    offset = 0
    while offset < len(content):
        key, offset = _varint(content, offset)
        number, kind = key >> 3, key & 7
        value: Any
        if kind == _VARINT:
            value, offset = _varint(content, offset)
        else:
            size = _FIXED_SIZES.get(kind)
            if kind == _BYTES:
                size, offset = _varint(content, offset)
            if size is None or offset + size > len(content):
                raise WireError(f"byte {offset} of a message is none, or it is cut off")
            value, offset = content[offset : offset + size], offset + size
        if number in known:
            if not isinstance(value, known[number]):
                raise WireError(f"field {number} is of another kind")
            yield number, value


def varints(content: bytes) -> NDArray[np.int64]:
    """Return the numbers of a packed list of varints, (n,).

    Raises: WireError when the list is cut off.
    """
    digits = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(digits < 0x80)
    if not digits.size:
        return np.empty(0, np.int64)
    if not ends.size or ends[-1] != digits.size - 1:
        raise WireError("a list of numbers is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > MAX_VARINT_BYTES:
        raise WireError("a number has too many bytes")
    shifts = 7 * (np.arange(digits.size) - np.repeat(starts, lengths))
    shifted = (digits & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(shifted, starts).view(np.int64)


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    """Return the number at `offset`, and the offset behind it."""
    value = 0
    for position in range(MAX_VARINT_BYTES):
        if offset + position >= len(content):
            raise WireError("a message is cut off")
        digit = content[offset + position]
        value |= (digit & 0x7F) << 7 * position
        if digit < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset + position + 1
    raise WireError("a number has too many bytes")
