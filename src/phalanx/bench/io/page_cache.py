"""The page cache: load files, drop them, count their resident pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

COLD_BELOW = 0.01  # share of pages in memory
READ_BYTES = 2**20
_DROP_CACHES = "/proc/sys/vm/drop_caches"


def drop(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop these files from the page cache; it keeps pages that are mapped or
    dirty, and files of memory file systems."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def can_drop_names() -> bool:
    return os.access(_DROP_CACHES, os.W_OK)


def drop_names() -> None:
    """Drop all unused dentries and inodes, so that opening a file reads its inode again."""
    with open(_DROP_CACHES, "w") as file:  # noqa: PTH123  # a file of the kernel's
        file.write("2")


def plain_read(paths: Iterable[Path], into: memoryview | None = None) -> int:
    """Read all files sequentially, 1 MB at a time, as `dd bs=1M` does; return the byte count.

    into: a ring buffer for the data. None: 1 MB, which stays in the processor's cache.
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


def resident_share(paths: Sequence[Path]) -> float | None:
    """Return the share of the files' pages in the page cache; None where unknown."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = pages = 0
    for path in paths:
        counted = _resident_pages(libc, path)
        if counted is None:
            return None
        here, pages = here + counted[0], pages + counted[1]
    return here / pages if pages else None


def _resident_pages(libc: ctypes.CDLL, path: Path) -> tuple[int, int] | None:
    """Return (resident pages, all pages)."""
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
        del view  # else the map cannot be closed
        return None if failed else (int((told & 1).sum()), pages)
