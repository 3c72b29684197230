"""Memory that the ranks of a node share: a part for each rank, all parts readable by all."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.comm.wait import WaitPolicy, wait_until

CACHE_LINE_BYTES = 64
_FLAG_STRIDE = CACHE_LINE_BYTES // 8  # in 8-byte counters


class Window:
    """One (n,) array a rank, in a shared segment of the node, with a barrier that costs one store
    and p loads.

    Every rank owns one cache line with a counter that only it writes; the barrier is passed when
    all counters have reached its number. Collective to make and to close.
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
        from mpi4py import MPI

        self.rank: int = node.Get_rank()
        self.size: int = node.Get_size()
        self._policy, self._timeout_s = policy, timeout_s
        data_bytes = num_elements * np.dtype(dtype).itemsize
        padded_bytes = -(-data_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        self._window = MPI.Win.Allocate_shared(CACHE_LINE_BYTES + padded_bytes, comm=node)
        self._window.Lock_all()
        segments: list[Any] = [self._window.Shared_query(r)[0] for r in range(self.size)]
        self._counters = [memoryview(s)[:CACHE_LINE_BYTES].cast("B").cast("q") for s in segments]
        self.parts: list[NDArray[Any]] = [
            np.frombuffer(s, dtype=dtype, offset=CACHE_LINE_BYTES, count=num_elements)
            for s in segments
        ]
        self._passed = 0
        self.mine[:] = 0  # touched by its owner first: on the owner's memory
        self._counters[self.rank][0] = 0
        self._window.Sync()
        node.Barrier()
        self._window.Sync()

    @property
    def mine(self) -> NDArray[Any]:
        return self.parts[self.rank]

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
        self._window.Unlock_all()
        self.parts.clear()
        self._counters.clear()
        self._window.Free()

    def _has_come(self, peer: int) -> bool:
        return self._counters[peer][0] >= self._passed

    def _timeout_text(self, name: str) -> str:
        missing = [str(peer) for peer in range(self.size) if not self._has_come(peer)]
        return (
            f"rank {self.rank} waited {self._timeout_s:g} s in {name} for rank {', '.join(missing)}"
        )
