"""The barrier before every measured call, the same one for all paths."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.comm.group import Group


class StartBarrier:
    """The cheapest barrier of this machine. Creation and closing are collective."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._pair: Group | None = None
        if group.rank < 2 < group.size:
            self._pair = group.subgroup((0, 1), name="bench-pair")
        self.barrier: Callable[[], None] = (group.shm or group).barrier

    def pair_barrier(self) -> Callable[[], None] | None:
        """Return the barrier of ranks 0 and 1 in shared memory; None on other ranks, and without
        shared memory."""
        group = self._group if self._group.size == 2 else self._pair
        return group.shm.barrier if group is not None and group.shm is not None else None

    def close(self) -> None:
        if self._pair is not None:
            self._pair.close()
