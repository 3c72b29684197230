"""How ranks begin together: the same barrier before every call of every path."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.comm.communicators import communicator_of
from phalanx.comm.node import Node
from phalanx.comm.world import World

_PAIR_TAG = 7


class Meeting:
    """A barrier that costs as little as this machine allows. Making one is collective."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._node = _join(world, world.node) if world.on_one_node else None
        self.barrier: Callable[[], None] = (self._node or world.group).barrier

    @property
    def words(self) -> str:
        return "flags in shared memory" if self._node else "messages"

    def pair(self) -> Callable[[], None] | None:
        """The barrier of ranks 0 and 1 alone, called by them only; None where they have no memory
        in common."""
        if self._node is None:
            return None
        if self._world.size == 2:
            return self._node.barrier
        communicator = communicator_of(self._world.node, (0, 1), _PAIR_TAG)
        node = _join(self._world, communicator)
        return node.barrier if node else None


def _join(world: World, communicator: object) -> Node | None:
    return Node.join(communicator, policy=world.policy, name="bench", timeout_s=world.timeout_s)
