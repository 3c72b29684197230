"""All-reduce of gradients, by the route that suits the placement of the ranks."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.expected_traffic import P2PAlgorithm, expected_traffic
from phalanx.comm.dtypes import DTYPES
from phalanx.comm.layout import chunks, share_of, starts_of
from phalanx.comm.traffic import (
    Traffic,
    all_reduce_traffic,
    sharded_all_reduce_traffic,
    sum_traffic,
)
from phalanx.comm.window import Window
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.shared_grad_buffer import SharedGradBuffer, sum_in_order

Method = Literal["auto", "shared", "library", "naive", "direct", "ring", "tree", "halving"]

# Of a library's all-reduce: far longer than a call's fixed cost, far below its limit of 2³¹.
BUCKET_BYTES = 4 * 2**20


class AllReducer(ABC):
    """Sums a vector, given as consecutive parts of fixed sizes, over all ranks."""

    name: str
    total: NDArray[Any]
    """(n,): the sums, the same bytes on every rank; valid until the next round."""
    is_finite: bool | None = None
    """`total` is all finite, where the reduction has checked it; None: not checked."""
    traffic_per_call: Traffic
    """What this rank sends and receives in a round. It is added to `world.traffic`, if there is
    one, in every round."""

    def __init__(self, sizes: Sequence[int], dtype: DTypeLike) -> None:
        self.sizes = tuple(sizes)
        self.dtype = np.dtype(dtype)
        self.num_bytes = sum(self.sizes) * self.dtype.itemsize

    @property
    def sent_bytes_per_call(self) -> int:
        """Bytes that this rank sends in a round."""
        return self.traffic_per_call.sent_bytes

    @property
    def received_bytes_per_call(self) -> int:
        """Bytes that this rank receives in a round."""
        return self.traffic_per_call.received_bytes

    def all_reduce(self, parts: Sequence[NDArray[Any]]) -> None:
        """Put into `total` the sum over all ranks of the vector that `parts` make up. Collective.

        parts: contiguous arrays of the sizes and dtype given; not changed.
        Raises: ValueError when they are not; WaitTimeoutError naming the ranks that did not come.
        """
        for number, (part, size) in enumerate(zip(parts, self.sizes, strict=True)):
            if part.size != size or part.dtype != self.dtype or not part.flags.c_contiguous:
                raise ValueError(
                    f"part {number} must be contiguous, {size} elements of {self.dtype}; it is "
                    f"{part.size} of {part.dtype}"
                )
        self.all_reduce_at([part.ctypes.data for part in parts])

    def all_reduce_at(self, addresses: Sequence[int]) -> None:
        """The same, unchecked, of parts that begin at these addresses of this process."""
        for part, address in enumerate(addresses):
            self.mark_ready(part, address)
        self.finish()

    @abstractmethod
    def mark_ready(self, part: int, address: int) -> None:
        """Mark a part ready; it must not change until `finish`. Not collective; any order."""

    @abstractmethod
    def finish(self) -> None:
        """Reduce once all parts are ready. Collective; fills `total`."""

    @abstractmethod
    def close(self) -> None:
        """Collective; `total` must not be used any more."""

    def _array(self, part: int, address: int) -> NDArray[Any]:
        return Buffer(address, self.sizes[part], DTYPES[self.dtype.name]).array()


class SharedReducer(AllReducer):
    """All-reduce in memory that the ranks of the node share, in C."""

    name = "shared"

    def __init__(
        self, world: World, parts: FlatGradBuffer, sizes: Sequence[int], dtype: DTypeLike
    ) -> None:
        """parts: with one vector for the sums."""
        super().__init__(sizes, dtype)
        self._world, self._parts = world, parts
        self.total = parts.vectors[0]
        self.traffic_per_call = sharded_all_reduce_traffic(
            self.num_bytes, parts.share_bytes, world.size
        )

    @classmethod
    def join(cls, world: World, sizes: Sequence[int], dtype: DTypeLike) -> SharedReducer | None:
        """None, on all ranks, where they have no such memory or no kernels. Collective."""
        starts = starts_of(sizes)
        parts = FlatGradBuffer.join(
            world, sizes, dtype, starts=starts[:-1], num_elements=starts[-1], num_vectors=1
        )
        return None if parts is None else cls(world, parts, sizes, dtype)

    def all_reduce_at(self, addresses: Sequence[int]) -> None:
        self.is_finite = self._parts.all_reduce(addresses)
        self._count()

    def mark_ready(self, part: int, address: int) -> None:
        self._parts.mark_ready(part, address)

    def finish(self) -> None:
        self.is_finite = self._parts.all_reduce()
        self._count()

    def close(self) -> None:
        del self.total
        self._parts.close()

    def _count(self) -> None:
        if (traffic := self._world.traffic) is not None:
            traffic.collective("all_reduce", self.num_bytes, self.traffic_per_call)


class WindowReducer(AllReducer):
    """All-reduce in a window of the MPI library, with array operations: without a compiler."""

    name = "shared"

    def __init__(self, world: World, sizes: Sequence[int], dtype: DTypeLike) -> None:
        super().__init__(sizes, dtype)
        self._world, num_elements = world, sum(sizes)
        policy, timeout_s = world.policy, world.timeout_s
        self._given = Window(world.node, num_elements, dtype, policy=policy, timeout_s=timeout_s)
        num_totals = num_elements if world.local_rank == 0 else 0
        self._sums = Window(world.node, num_totals, dtype, policy=policy, timeout_s=timeout_s)
        self.total = self._sums.arrays[0]
        self._parts = SharedGradBuffer(self._given, sizes)
        own = len(share_of(world.rank, world.size, num_elements))
        self.traffic_per_call = sharded_all_reduce_traffic(
            self.num_bytes, own * self.dtype.itemsize, world.size
        )

    def mark_ready(self, part: int, address: int) -> None:
        self._parts.mark_ready(part, self._array(part, address))

    def finish(self) -> None:
        self._parts.reduce(
            lambda where, terms: sum_in_order(terms, self.total[where]), "the all-reduce"
        )
        if (traffic := self._world.traffic) is not None:
            traffic.collective("all_reduce", self.num_bytes, self.traffic_per_call)

    def close(self) -> None:
        del self.total, self._parts
        self._sums.close()
        self._given.close()


class LibraryReducer(AllReducer):
    """All-reduce by the MPI library, bucket by bucket: any number of nodes."""

    name = "library"

    def __init__(self, world: World, sizes: Sequence[int], dtype: DTypeLike) -> None:
        super().__init__(sizes, dtype)
        self._world = world
        self._places = [slice(*ends) for ends in itertools.pairwise(starts_of(sizes))]
        self.total = np.zeros(sum(sizes), dtype)
        self._buckets = list(chunks(sum(sizes), BUCKET_BYTES // self.total.itemsize))
        counts = [bucket.stop - bucket.start for bucket in self._buckets]
        self.traffic_per_call = sum_traffic(
            [all_reduce_traffic(n, self.total.itemsize, world.rank, world.size) for n in counts]
        )

    def mark_ready(self, part: int, address: int) -> None:
        self.total[self._places[part]] = self._array(part, address)

    def finish(self) -> None:
        for bucket in self._buckets:
            self._world.all_reduce(self.total[bucket])

    def close(self) -> None:
        del self.total


class P2PReducer(AllReducer):
    """All-reduce by a point-to-point algorithm, all parts as one vector: any number of nodes."""

    def __init__(
        self, world: World, sizes: Sequence[int], dtype: DTypeLike, algorithm: P2PAlgorithm
    ) -> None:
        super().__init__(sizes, dtype)
        self._world, self._algorithm = world, algorithm
        self.name = algorithm
        self._places = [slice(*ends) for ends in itertools.pairwise(starts_of(sizes))]
        self.total = np.zeros(sum(sizes), dtype)
        self._buffer = Buffer.of(self.total)
        itemsize = self.dtype.itemsize
        self.traffic_per_call = expected_traffic(
            algorithm, self.total.size, itemsize, world.rank, world.size
        )

    def mark_ready(self, part: int, address: int) -> None:
        self.total[self._places[part]] = self._array(part, address)

    def finish(self) -> None:
        self._world.group.all_reduce(self._buffer, algorithm=self._algorithm)

    def close(self) -> None:
        del self.total, self._buffer


def make_reducer(
    world: World, sizes: Sequence[int], dtype: DTypeLike, method: Method = "auto"
) -> AllReducer:
    """Make the reducer for vectors of consecutive parts of `sizes` elements. Collective.

    `auto` takes shared memory when all ranks are on one node, the library's all-reduce otherwise,
    and `direct` over an emulated link. naive, direct, ring, tree, halving: on messages, also within
    a node.

    Raises: ValueError when `shared` is asked for where it cannot be used, or `library` over an
            emulated link, which would not slow it.
    """
    match method:
        case "library" if world.link is not None:
            raise ValueError("the emulated link does not slow the MPI library's own all-reduce")
        case "auto" if world.link is not None:
            return P2PReducer(world, sizes, dtype, "direct")
        case "library":
            return LibraryReducer(world, sizes, dtype)
        case "auto" | "shared":
            return _through_memory(world, sizes, dtype, method)
        case _:
            return P2PReducer(world, sizes, dtype, method)


def _through_memory(
    world: World, sizes: Sequence[int], dtype: DTypeLike, method: Method
) -> AllReducer:
    obstacle = world.share(obstacle_to_sharing(world))
    if obstacle is None:
        reducer = SharedReducer.join(world, sizes, dtype)
        if reducer is not None:
            return reducer
        num_bytes = sum(sizes) * np.dtype(dtype).itemsize * (world.local_size + 1)
        obstacle = world.share(obstacle_to_window(num_bytes))
    if obstacle is None:
        return WindowReducer(world, sizes, dtype)
    if method == "shared":
        raise ValueError(f"the shared all-reduce cannot be used: {obstacle}")
    return LibraryReducer(world, sizes, dtype)


def obstacle_to_sharing(world: World) -> str | None:
    """Return why the ranks cannot reduce in shared memory; None if they can."""
    if not world.on_one_node:
        return f"the ranks are on several nodes ({world.local_size} of {world.size} on this one)"
    if world.size == 1:
        return "there is one rank"
    return None


def obstacle_to_window(num_bytes: int, folder: str = "/dev/shm") -> str | None:
    """Why the MPI library cannot give a window of so many bytes; None when it can."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None  # no such folder here; the library knows its own place
    free_bytes = status.f_bavail * status.f_frsize
    if num_bytes > 0.9 * free_bytes:
        return f"it needs {num_bytes} bytes of {folder}, where {free_bytes} are free"
    return None
