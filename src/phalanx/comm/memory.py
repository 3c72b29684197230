"""Memory that several processes see, and that leaves nothing behind.

It has no name: other processes of the same user reach it through the file descriptor of the one
that made it (`/proc/<process>/fd/<number>`). So it is gone with the last process that uses it,
however that ended, and it needs no room in `/dev/shm`, which containers keep small. A descriptor is
closed once all have mapped the memory: processes have a thousand of them, and jobs many groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 * 2**20
_WORD_BYTES = 16
_HUGE_PAGES = 14  # MADV_HUGEPAGE


class SegmentHandle(NamedTuple):
    """Memory of a process, as others find it and know it again."""

    process: int
    descriptor: int
    device: int
    inode: int
    num_bytes: int
    word: bytes
    """A random one, behind the memory in its file."""


class SharedMemory:
    """`num_bytes` of zeroed memory. It lives as long as this object or an array of it."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        """descriptor: is closed by `close_descriptor`, and at the latest with the memory."""
        self.num_bytes = num_bytes
        self.address = _map(descriptor, num_bytes)
        self.descriptor: int | None = descriptor

    @classmethod
    def create(cls, num_bytes: int) -> SharedMemory:
        """Raises: OSError where the system has no such memory, or not enough."""
        descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, num_bytes)
            os.pwrite(descriptor, os.urandom(_WORD_BYTES), num_bytes)
            return cls(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, handle: SegmentHandle) -> SharedMemory:
        """Map memory of another process.

        Nothing is opened, and nothing written, before it is known to be that memory: where this
        process counts processes otherwise, such as in a container of its own, the number may be
        that of another one, and its descriptor that of a file.

        Raises: OSError where that process cannot be looked into, or is another one.
        """
        path = Path(f"/proc/{handle.process}/fd/{handle.descriptor}")
        _check_same(path.stat(), handle)
        own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _check_same(os.fstat(own), handle)
            if os.pread(own, _WORD_BYTES, handle.num_bytes) != handle.word:
                raise _stale(handle)
            memory = cls(own, handle.num_bytes)
        except BaseException:
            os.close(own)
            raise
        memory.close_descriptor()
        return memory

    @property
    def handle(self) -> SegmentHandle:
        """Handle by which other ranks find it while its descriptor is open."""
        assert self.descriptor is not None, "the descriptor is closed"
        status = os.fstat(self.descriptor)
        word = os.pread(self.descriptor, _WORD_BYTES, self.num_bytes)
        return SegmentHandle(
            os.getpid(), self.descriptor, status.st_dev, status.st_ino, self.num_bytes, word
        )

    def array(self) -> NDArray[np.uint8]:
        """(num_bytes,) of the memory, which it keeps alive."""
        block = (ctypes.c_ubyte * self.num_bytes).from_address(self.address)
        block.memory = self  # type: ignore[attr-defined]
        return np.frombuffer(memoryview(block), np.uint8)

    def close_descriptor(self) -> None:
        """All who are to see the memory have mapped it."""
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            _C.munmap(self.address, self.num_bytes)
            self.close_descriptor()


def allocate_shared(node: Any, num_bytes: int) -> SharedMemory | None:
    """One piece of memory for all ranks of the communicator `node`; None, on all of them, where
    that cannot be had, of which the first rank warns. Collective."""
    memory: SharedMemory | None = None
    handle: SegmentHandle | None = None
    obstacle = ""
    try:
        if node.Get_rank() == 0:
            memory = SharedMemory.create(num_bytes)
            handle = memory.handle
    except (OSError, AttributeError) as error:
        obstacle = f"rank 0 of the node cannot create it ({error})"
    handle = node.bcast(handle)
    try:
        if memory is None and handle is not None:
            memory = SharedMemory.attach(handle)
    except OSError as error:
        obstacle = f"rank {node.Get_rank()} of the node cannot map that of rank 0 ({error})"
    obstacles = [said for said in node.allgather(obstacle) if said]
    if obstacles:
        if node.Get_rank() == 0:
            warn_no_shared_memory(obstacles[0])
        return None
    assert memory is not None, "no obstacle was found"
    memory.close_descriptor()  # all have mapped it
    return memory


def warn_no_shared_memory(reason: str) -> None:
    """Say that ranks of one node go by messages. By one rank of the node."""
    warnings.warn(
        f"the ranks on {socket.gethostname()} cannot share memory: {reason}. They exchange "
        "messages instead, which is several times slower",
        RuntimeWarning,
        stacklevel=2,
    )


def _check_same(status: os.stat_result, handle: SegmentHandle) -> None:
    is_same = (status.st_dev, status.st_ino) == (handle.device, handle.inode)
    if not is_same or status.st_size != handle.num_bytes + _WORD_BYTES:
        raise _stale(handle)


def _stale(handle: SegmentHandle) -> OSError:
    return OSError(
        errno.ESTALE,
        f"process {handle.process} is a different process here: the ranks are in separate PID "
        "namespaces, as in containers started without the PID namespace of the host",
    )


_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_C.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_C.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _map(descriptor: int, num_bytes: int) -> int:
    """Map the file and return its address. Python's `mmap` would keep another descriptor of it."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _C.mmap(None, num_bytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if num_bytes >= HUGE_PAGE_BYTES:
        _C.madvise(address, num_bytes, getattr(mmap, "MADV_HUGEPAGE", _HUGE_PAGES))
    return int(address)
