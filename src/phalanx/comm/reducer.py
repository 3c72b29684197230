"""All-reduce of gradients by the way that suits where the ranks are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.collectives.shared import SharedAllReduce
from phalanx.comm.layout import chunks, starts_of
from phalanx.comm.window import Window
from phalanx.comm.world import World

Method = Literal["auto", "shared", "library"]

# Of a library's all-reduce: far longer than a call's fixed cost, far below its limit of 2³¹.
BUCKET_BYTES = 4 * 2**20


class AllReducer(Protocol):
    """Sums a vector, given as consecutive parts of fixed sizes, over all ranks."""

    name: str
    total: NDArray[Any]
    """(n,): the sums, the same bytes on every rank; valid until the next `all_reduce`."""

    def all_reduce(self, parts: Sequence[NDArray[Any]]) -> None:
        """parts: this rank's 1-D arrays; not changed. Collective."""

    def close(self) -> None:
        """Collective; `total` must not be used any more."""


class SharedReducer:
    """Through memory that the ranks of the node share."""

    name = "shared"

    def __init__(self, world: World, sizes: Sequence[int], dtype: DTypeLike) -> None:
        num_elements = sum(sizes)
        policy, timeout_s = world.policy, world.timeout_s
        self._given = Window(world.node, num_elements, dtype, policy=policy, timeout_s=timeout_s)
        num_totals = num_elements if world.local_rank == 0 else 0
        self._sums = Window(world.node, num_totals, dtype, policy=policy, timeout_s=timeout_s)
        self.total = self._sums.arrays[0]
        self._all_reduce = SharedAllReduce(self._given, self.total, sizes)

    def all_reduce(self, parts: Sequence[NDArray[Any]]) -> None:
        self._all_reduce(parts)

    def close(self) -> None:
        del self.total, self._all_reduce
        self._sums.close()
        self._given.close()


class LibraryReducer:
    """By the MPI library, bucket by bucket: any number of nodes."""

    name = "library"

    def __init__(self, world: World, sizes: Sequence[int], dtype: DTypeLike) -> None:
        self._world = world
        self._places = [slice(*ends) for ends in itertools.pairwise(starts_of(sizes))]
        self.total: NDArray[Any] = np.zeros(sum(sizes), dtype)
        self._buckets = list(chunks(sum(sizes), BUCKET_BYTES // self.total.itemsize))

    def all_reduce(self, parts: Sequence[NDArray[Any]]) -> None:
        for place, part in zip(self._places, parts, strict=True):
            self.total[place] = part
        for bucket in self._buckets:
            self._world.all_reduce(self.total[bucket])

    def close(self) -> None:
        del self.total


def make_reducer(
    world: World, sizes: Sequence[int], dtype: DTypeLike, method: Method = "auto"
) -> AllReducer:
    """The reducer for vectors of consecutive parts of `sizes` elements. Collective.

    `auto` takes shared memory when all ranks are on one node and it is large enough, the library's
    all-reduce otherwise.

    Raises: ValueError when `shared` is asked for where it cannot be used.
    """
    if method == "library":
        return LibraryReducer(world, sizes, dtype)
    needed_bytes = sum(sizes) * np.dtype(dtype).itemsize * (world.local_size + 1)
    obstacle = world.share(obstacle_to_sharing(world, needed_bytes))
    if obstacle is None:
        return SharedReducer(world, sizes, dtype)
    if method == "shared":
        raise ValueError(f"the shared all-reduce cannot be used: {obstacle}")
    return LibraryReducer(world, sizes, dtype)


def obstacle_to_sharing(world: World, needed_bytes: int, folder: str = "/dev/shm") -> str | None:
    """Why the ranks cannot sum in shared memory of so many bytes; None when they can."""
    if not world.on_one_node:
        return f"the ranks are on several nodes ({world.local_size} of {world.size} on this one)"
    if world.size == 1:
        return "there is one rank"
    try:
        status = os.statvfs(folder)
    except OSError:
        return None  # no such folder here; the library knows its own place
    free_bytes = status.f_bavail * status.f_frsize
    if needed_bytes > 0.9 * free_bytes:
        return f"it needs {needed_bytes} bytes of {folder}, where {free_bytes} are free"
    return None
