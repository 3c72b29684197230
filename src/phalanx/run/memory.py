"""Memory of this process: keep freed pages, and measure."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**30


def keep_freed_memory() -> None:
    """Make glibc's malloc keep freed memory, up to a gigabyte, for the next step.

    A convolution frees tens of megabytes a step; by default they go back to the system and are
    mapped, page by page, again, which costs up to a fifth of the step, or not, as luck has it.
    Nothing happens under another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST)


def resident_bytes() -> int | None:
    """Return the memory of this process, shared pages divided among its sharers; None where the
    system does not report it. Some milliseconds."""
    try:
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
