"""The world of ranks that all process groups of a process share."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.group import Group
from phalanx.comm.world import World
from phalanx.torch_backend.gpu_staging import device_types

if TYPE_CHECKING:
    from phalanx.torch_backend.call_context import CallContext


class Session:
    """One `World`, closed when the last group has left it."""

    def __init__(self, world: World, end: Callable[[], None] | None = None) -> None:
        """end: called when the world has been closed."""
        self.world = world
        self._end = end
        self.pid = os.getpid()
        self.is_open = True
        self.has_failed = False
        self._groups: list[CallContext] = []
        self._num_made: Counter[tuple[int, ...]] = Counter()
        kinds = set(world.group.compare(device_types()[-1]))
        self.is_gpu_aware = world.is_gpu_aware and len(kinds) == 1
        """True if MPI gets tensors of a device where they lie. The same on every rank."""
        self.stages_in_parts = kinds != {"cpu"} and not self.is_gpu_aware
        """True if long tensors go in parts, those of the CPU too. The same on every rank."""

    def add_group(self, group: CallContext) -> None:
        self._groups.append(group)

    def next_tag(self, members: Sequence[int]) -> int:
        """Return a tag for a new group: the same on every member, and rarely used by another group.

        PyTorch's group name cannot serve: since 2.15 it counts the groups that a rank has made, and
        some are made by their members only.
        """
        self._num_made[tuple(members)] += 1
        return zlib.crc32(f"{self._num_made[tuple(members)]} {list(members)}".encode()) % 2**15

    def remove_group(self, group: CallContext, engine: Group) -> None:
        """Free the engine of `group`; close the world after the last group."""
        self._groups = [other for other in self._groups if other is not group]
        if self.pid != os.getpid():
            return
        if engine is not self.world.group:
            engine.close()
        if not self._groups and self.is_open:
            try:
                self.exit_barrier()
            finally:
                self.is_open = False
                self.world.close()
                if self._end is not None:
                    self._end()

    def exit_barrier(self) -> None:
        """Wait until all peers exit too. MPI_Finalize would wait as well, but for ever when a peer
        still waits for this rank.

        Raises: MismatchError, on both ranks, when a peer is in a collective.
        """
        if self.has_failed:
            return
        # a failed or missing rank has been reported already
        with suppress(PeerFailedError, WaitTimeoutError):
            self.world.group.barrier(name="the end of the program")

    def fail(self, reason: str) -> None:
        """Report to the peers, once, that this rank has failed."""
        if self.is_open and not self.has_failed:
            self.has_failed = True
            self.world.group.fail(reason)

    def refuse(self, reason: str) -> None:
        """Refuse all later calls of all groups."""
        for group in self._groups:
            group.refuse(reason)

    def end_threads(self, timeout_s: float) -> bool:
        """End the threads of all groups; return whether nothing is running any more."""
        ended = [group.close(timeout_s) for group in self._groups]  # closes each of them
        return all(ended)
