"""The world of ranks that all process groups of a process share."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.group import Group
from phalanx.comm.world import World


class Participant(Protocol):
    """A process group, as the session sees it."""

    def refuse(self, reason: str) -> None:
        """Raise RuntimeError with `reason` in every later call."""

    def close(self, timeout_s: float) -> bool:
        """End its threads; whether nothing is under way any more."""


class Session:
    """One `World`, closed when the last group has left it."""

    def __init__(self, world: World, end: Callable[[], None] | None = None) -> None:
        """end: called when the world has been closed."""
        self.world = world
        self._end = end
        self.pid = os.getpid()
        self.is_open = True
        self.has_failed = False
        self._groups: list[Participant] = []
        self._num_made: Counter[tuple[int, ...]] = Counter()

    def add_group(self, group: Participant) -> None:
        self._groups.append(group)

    def next_tag(self, members: Sequence[int]) -> int:
        """For a new group: the same on every member, and seldom that of another group.

        PyTorch's name of a group is no help: since 2.15 it counts the groups that a rank has made,
        and some were made by their members only.
        """
        self._num_made[tuple(members)] += 1
        return zlib.crc32(f"{self._num_made[tuple(members)]} {list(members)}".encode()) % 2**15

    def remove_group(self, group: Participant, engine: Group) -> None:
        """Give back what `group` had."""
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
        """Wait until the other ranks are leaving too. MPI's own end would wait for them as well,
        but for ever when one of them still waits for this rank.

        Raises: MismatchError, on both sides, when one of them is in a collective.
        """
        if self.has_failed:
            return
        # who failed, or did not come, has been told of already
        with suppress(PeerFailedError, WaitTimeoutError):
            self.world.group.barrier(name="the end of the program")

    def fail(self, reason: str) -> None:
        """Tell the other ranks, once, that this one cannot go on."""
        if self.is_open and not self.has_failed:
            self.has_failed = True
            self.world.group.fail(reason)

    def refuse(self, reason: str) -> None:
        """No group may be used any more."""
        for group in self._groups:
            group.refuse(reason)

    def end_threads(self, timeout_s: float) -> bool:
        """End the threads of all groups; return whether nothing is running any more."""
        ended = [group.close(timeout_s) for group in self._groups]  # each of them
        return all(ended)
