"""Memory that the ranks of a node share, and a barrier in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.layout import CACHE_LINE_BYTES
from phalanx.comm.wait import WaitPolicy, wait_until


class Window:
    """For each rank of the node an array that all its ranks can read and write.

    The barrier costs one store and p loads: every rank owns a cache line with a counter that only
    it writes, and the barrier is passed when all counters have reached its number. Making and
    closing a window is collective.
    """

    def __init__(
        self,
        node: Any,
        num_elements: int,
        dtype: DTypeLike,
        *,
        policy: WaitPolicy,
        timeout_s: float,
    ) -> None:
        """num_elements: of this rank's own array; it may differ from rank to rank."""
        from mpi4py import MPI

        self.rank: int = node.Get_rank()
        self.size: int = node.Get_size()
        self._policy, self._timeout_s = policy, timeout_s
        num_bytes = CACHE_LINE_BYTES + num_elements * np.dtype(dtype).itemsize
        # Whole lines: the next rank's counter begins where this rank's memory ends.
        num_bytes = -(-num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self._window = MPI.Win.Allocate_shared(num_bytes, comm=node)
        self._window.Lock_all()
        segments: list[Any] = [self._window.Shared_query(rank)[0] for rank in range(self.size)]
        counts = node.allgather(num_elements)
        self._counters = [memoryview(s)[:CACHE_LINE_BYTES].cast("B").cast("q") for s in segments]
        self.arrays: list[NDArray[Any]] = [
            np.frombuffer(segment, dtype=dtype, offset=CACHE_LINE_BYTES, count=count)
            for segment, count in zip(segments, counts, strict=True)
        ]
        self._passed = 0
        self.arrays[self.rank][:] = 0  # touched by its owner first: on the owner's memory
        self._counters[self.rank][0] = 0
        self._window.Sync()
        node.Barrier()
        self._window.Sync()

    def barrier(self, name: str) -> None:
        """Wait until every rank of the node is here; what they wrote before is then visible.

        Raises: WaitTimeoutError naming `name` and the ranks that did not come.
        """
        self._window.Sync()  # a memory fence: what was written comes before the counter
        self._passed += 1
        self._counters[self.rank][0] = self._passed
        for peer in range(self.size):
            if not self._has_come(peer):
                wait_until(
                    partial(self._has_come, peer),
                    self._policy,
                    timeout_s=self._timeout_s,
                    on_timeout=partial(self._timeout_text, name),
                )
        self._window.Sync()

    def close(self) -> None:
        """Give the memory back; arrays of it must not be used any more."""
        self._window.Unlock_all()
        self.arrays.clear()
        self._counters.clear()
        self._window.Free()

    def _has_come(self, peer: int) -> bool:
        return self._counters[peer][0] >= self._passed

    def _timeout_text(self, name: str) -> str:
        missing = [str(peer) for peer in range(self.size) if not self._has_come(peer)]
        return (
            f"rank {self.rank} waited {self._timeout_s:g} s in {name} for rank {', '.join(missing)}"
        )
