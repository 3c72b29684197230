"""Files out of the system's memory, or into it, and which of their pages are there. Linux tells;
elsewhere nobody knows whether an epoch was cold."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

COLD_BELOW = 0.01  # share of pages in memory
READ_BYTES = 2**20
_DROP_CACHES = "/proc/sys/vm/drop_caches"


def drop(paths: Iterable[Path]) -> None:
    """Ask the system to forget what it holds of these files. It does not where they are mapped, not
    yet written, or live in memory."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def can_drop_names() -> bool:
    return os.access(_DROP_CACHES, os.W_OK)


def drop_names() -> None:
    """Have the system forget all names and inodes that nobody uses: opening a file reads its inode
    anew."""
    with open(_DROP_CACHES, "w") as file:  # noqa: PTH123  # a file of the kernel's
        file.write("2")


def plain_read(paths: Iterable[Path], into: memoryview | None = None) -> int:
    """Read all bytes one after the other, 1 MB at a time, as `dd bs=1M` does; returns how many.

    into: memory that they are read into, one after the other, from its beginning again at its end.
          None: 1 MB, which stays in the processor's cache.
    """
    memory = into if into is not None else memoryview(bytearray(READ_BYTES))
    total = offset = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(memory[offset : offset + READ_BYTES]):
                total += count
                offset += count
                if offset >= len(memory):
                    offset = 0
    return total


def resident(paths: Sequence[Path]) -> float | None:
    """Share of the files' pages that are in memory; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    here = pages = 0
    for path in paths:
        counted = _resident_pages(libc, path)
        if counted is None:
            return None
        here, pages = here + counted[0], pages + counted[1]
    return here / pages if pages else None


def _resident_pages(libc: ctypes.CDLL, path: Path) -> tuple[int, int] | None:
    """(in memory, all)."""
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        pages = -(-size // mmap.PAGESIZE)
        told = np.zeros(pages, np.uint8)
        view = np.frombuffer(mapped, np.uint8)
        failed = libc.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(size),
            ctypes.c_void_p(told.ctypes.data),
        )
        del view  # or the map could not be closed
        return None if failed else (int((told & 1).sum()), pages)
