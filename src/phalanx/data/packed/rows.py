"""Spans of files, read to where they are wanted, each compared with its checksum on the way.

In C where it was built (csrc/rows.c); the same, a span at a time, in Python.
"""

from __future__ import annotations

import importlib
import os
import zlib
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WHOLE, ENDS_EARLY, ALTERED = 0, 1, 2
"""What became of a span; or minus the number of an error of the system."""

VARIABLE = "PHALANX_KERNELS"  # "arrays": do without C


class Spans(NamedTuple):
    """(n,) each, contiguous."""

    files: NDArray[np.int32]  # descriptors
    maps: NDArray[np.int64]  # where a file lies in memory; 0: nowhere, it is to be read
    map_bytes: NDArray[np.int64]  # how much of it does
    offsets: NDArray[np.int64]  # in the file
    sizes: NDArray[np.int64]
    places: NDArray[np.int64]  # where to in the output
    crcs: NDArray[np.uint32]


def read_spans(spans: Spans, out: NDArray[np.uint8]) -> NDArray[np.int32]:
    """(n,) what became of each span. out: contiguous, with room for every place.

    Cost: one copy of the bytes and one pass over them in the cache. What lies in memory needs no
    call of the system, and spans that lie one after the other are read by one. The GIL is given up.
    """
    outcomes = np.empty(len(spans.sizes), np.int32)
    module = compiled()
    if module is None:
        for i in range(len(outcomes)):
            outcomes[i] = _read_span(spans, i, out.data)
    else:
        module.read_spans(*spans, out, outcomes)
    return outcomes


def crcs_of_rows(rows: NDArray[Any]) -> NDArray[np.uint32]:
    """(n,) the CRC-32 of each of n rows. rows: (n, …), contiguous."""
    crcs = np.empty(len(rows), np.uint32)
    module = compiled()
    if not rows.size:
        crcs[:] = 0
    elif module is None:
        for i, row in enumerate(rows):
            crcs[i] = zlib.crc32(np.ascontiguousarray(row).data)
    else:
        module.crcs_of_rows(rows, crcs)
    return crcs


def compiled() -> ModuleType | None:
    """The module in C; None when it was not built, or is not wanted."""
    if os.environ.get(VARIABLE) == "arrays":
        return None
    return _imported()


@cache
def _imported() -> ModuleType | None:
    try:
        return importlib.import_module("phalanx.data.packed._rows")
    except ImportError:
        return None


def _read_span(spans: Spans, i: int, out: memoryview) -> int:
    place, size, offset = int(spans.places[i]), int(spans.sizes[i]), int(spans.offsets[i])
    target, done = out[place : place + size], 0
    try:
        while done < size:
            got = os.preadv(int(spans.files[i]), [target[done:]], offset + done)
            if not got:
                return ENDS_EARLY
            done += got
    except OSError as error:
        return -(error.errno or 5)
    return WHOLE if zlib.crc32(target) == int(spans.crcs[i]) else ALTERED
