"""A buffer for gradients and the all-reduce that suits where it lives."""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.collectives.shared import shared_all_reduce
from phalanx.comm.window import Window
from phalanx.comm.world import World

Method = Literal["auto", "shared", "library"]


class AllReducer(Protocol):
    """`buffer` is this rank's (n,) array, to be filled in place; `all_reduce` sums it in place."""

    name: str
    buffer: NDArray[Any]

    def all_reduce(self, start: int, stop: int) -> None: ...

    def close(self) -> None: ...


class SharedReducer:
    """The buffers of all ranks lie in one window of the node; nothing is copied or sent."""

    name = "shared"

    def __init__(self, world: World, num_elements: int, dtype: DTypeLike) -> None:
        self._window = Window(
            world.node, num_elements, dtype, policy=world.policy, timeout_s=world.timeout_s
        )
        self.buffer = self._window.mine

    def all_reduce(self, start: int, stop: int) -> None:
        shared_all_reduce(self._window, start, stop)

    def close(self) -> None:
        del self.buffer
        self._window.close()


class LibraryReducer:
    """An ordinary buffer, summed by the MPI library: any number of nodes."""

    name = "library"

    def __init__(self, world: World, num_elements: int, dtype: DTypeLike) -> None:
        self._world = world
        self.buffer: NDArray[Any] = np.zeros(num_elements, dtype)

    def all_reduce(self, start: int, stop: int) -> None:
        self._world.all_reduce(self.buffer[start:stop])

    def close(self) -> None:
        del self.buffer


def make_reducer(
    world: World, num_elements: int, dtype: DTypeLike, method: Method = "auto"
) -> AllReducer:
    """The reducer for `num_elements` of `dtype`. Collective.

    `auto` takes the shared window when all ranks are on one node and the window fits into the
    node's shared memory, the library's all-reduce otherwise.

    Raises: ValueError when `shared` is asked for on several nodes or where it does not fit.
    """
    if method == "library" or (method == "auto" and world.size == 1):
        return LibraryReducer(world, num_elements, dtype)
    needed_bytes = num_elements * np.dtype(dtype).itemsize * world.local_size
    obstacle = world.share(_obstacle(world, needed_bytes))
    if obstacle is None:
        return SharedReducer(world, num_elements, dtype)
    if method == "shared":
        raise ValueError(f"the shared all-reduce cannot be used: {obstacle}")
    return LibraryReducer(world, num_elements, dtype)


def _obstacle(world: World, needed_bytes: int, folder: str = "/dev/shm") -> str | None:
    if not world.on_one_node:
        return f"the ranks are on several nodes ({world.local_size} of {world.size} on this one)"
    try:
        status = os.statvfs(folder)
    except OSError:
        return None  # no such folder here; the library knows its own place
    free_bytes = status.f_bavail * status.f_frsize
    if needed_bytes > 0.9 * free_bytes:
        return f"it needs {needed_bytes} bytes of {folder}, where {free_bytes} are free"
    return None
