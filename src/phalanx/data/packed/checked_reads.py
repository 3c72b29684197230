"""Scatter reads of file spans into one output, each verified against its CRC-32.

In C where the extension was built (csrc/rows.c); else in Python, one span at a time.
"""

from __future__ import annotations

import os
import zlib
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.compiled import import_extension

INTACT, TRUNCATED, ALTERED = 0, 1, 2
"""Outcome of reading a span; or a negative errno."""


def describe_outcome(outcome: int) -> str:
    """Describe the outcome of reading a span."""
    if outcome < 0:
        return f"cannot be read: {os.strerror(-outcome)}"
    return "lies beyond the file's end" if outcome == TRUNCATED else "is not what was packed"


class SpanBatch(NamedTuple):
    """Spans to read: (n,) each, contiguous."""

    files: NDArray[np.int32]  # descriptors
    maps: NDArray[np.int64]  # address of the file's mapping; 0: not mapped, read it
    map_bytes: NDArray[np.int64]  # bytes mapped
    offsets: NDArray[np.int64]  # byte offsets in the file
    sizes: NDArray[np.int64]
    destinations: NDArray[np.int64]  # offset in the output
    crcs: NDArray[np.uint32]


def read_spans(spans: SpanBatch, out: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Read every span; return the outcomes (n,). out: contiguous, with room for every span.

    Cost: one copy of the bytes and one pass over them in the cache. Mapped files need no system
    call, and adjacent spans share one. Releases the GIL.
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
    """Return the CRC-32 of each row, (n,). rows: (n, …), contiguous."""
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


@cache
def compiled() -> ModuleType | None:
    """Return the C extension; None when it was not built.

    Raises: UserError as `import_extension`.
    """
    return import_extension("phalanx.data.packed._rows")


def _read_span(spans: SpanBatch, i: int, out: memoryview) -> int:
    start, size, offset = int(spans.destinations[i]), int(spans.sizes[i]), int(spans.offsets[i])
    target, done = out[start : start + size], 0
    try:
        while done < size:
            got = os.preadv(int(spans.files[i]), [target[done:]], offset + done)
            if not got:
                return TRUNCATED
            done += got
    except OSError as error:
        return -(error.errno or 5)
    return INTACT if zlib.crc32(target) == int(spans.crcs[i]) else ALTERED
