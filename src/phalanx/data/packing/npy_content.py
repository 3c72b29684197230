"""Content of `.npy` files, checked before it is believed; nothing is unpickled."""

from __future__ import annotations

import io
import math
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def parse_npy(content: bytes) -> NDArray[Any]:
    """Return the array, read-only, in the memory of `content`. Nothing is unpickled.

    Raises: ValueError, in words, when it is no array, holds objects, or its header names another
            size than follows.
    """
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        if version not in _READERS:
            raise ValueError(f"version {version[0]}.{version[1]} is of no plain array")
        shape, is_fortran, dtype = _READERS[version](file)
    except (SyntaxError, TokenError, TypeError, KeyError, EOFError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    if dtype.hasobject:
        raise ValueError("Object arrays are pickles, which can run any program")
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if expected != found or dtype.itemsize == 0:
        raise ValueError(
            f"its header says {dtype} of {shape}, {expected:,} bytes, and {found:,} follow"
        )
    flat: NDArray[Any] = np.frombuffer(content, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")
