"""Memory that several processes see, and that leaves nothing behind.

It has no name: other processes of the same user reach it through the file descriptor of the one
that made it (`/proc/<process>/fd/<number>`). So it is gone with the last process that uses it,
however that ended, and it needs no room in `/dev/shm`, which containers keep small.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 * 2**20


class SharedMemory:
    """`num_bytes` of zeroed memory. It lives as long as this object or an array of it."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        self._map = mmap.mmap(descriptor, num_bytes)
        if num_bytes >= HUGE_PAGE_BYTES:
            with contextlib.suppress(OSError, AttributeError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory:
        """Raises: OSError where the system has no such memory, or not enough."""
        descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, num_bytes)
            return cls(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, process: int, descriptor: int, num_bytes: int) -> SharedMemory:
        """The memory that `process` has open as `descriptor`.

        Raises: OSError where that process cannot be looked into.
        """
        own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(own, num_bytes)
        except BaseException:
            os.close(own)
            raise

    def array(self) -> NDArray[np.uint8]:
        """(num_bytes,) of the memory, which it keeps alive."""
        return np.frombuffer(self._map, np.uint8)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.descriptor)


def share_within(node: Any, num_bytes: int) -> SharedMemory | None:
    """One piece of memory for all ranks of the communicator `node`; None, on all of them, where
    that cannot be had. Collective."""
    memory: SharedMemory | None = None
    where: tuple[int, int] | None = None
    if node.Get_rank() == 0:
        with contextlib.suppress(OSError, AttributeError):
            memory = SharedMemory.create(num_bytes)
            where = (os.getpid(), memory.descriptor)
    where = node.bcast(where)
    if memory is None and where is not None:
        with contextlib.suppress(OSError):
            process, descriptor = where
            memory = SharedMemory.attach(process, descriptor, num_bytes)
    everywhere = all(node.allgather(memory is not None))
    return memory if everywhere else None
