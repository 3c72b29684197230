"""A communicator over sockets, with the methods of mpi4py's that the engine uses."""

# ruff: noqa: N802

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from phalanx.comm.sockets.inbox import ANY, Arrival
from phalanx.comm.sockets.mesh import Sending, SocketMesh
from phalanx.comm.sockets.requests import DeadPeerError, ReceiveRequest, Status

_MAX_TAG = 2**31 - 1


class SocketGroup:
    """Ranks of a communicator: a group, as mpi4py calls it."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)

    def Incl(self, ranks: Sequence[int]) -> SocketGroup:
        return SocketGroup([self.members[rank] for rank in ranks])

    def Free(self) -> None:
        pass


class SocketCommunicator:
    """Some ranks of a mesh, in an order, with messages that meet no others."""

    def __init__(self, mesh: SocketMesh, members: Sequence[int], *, context: int = 0) -> None:
        """members: ranks in the world, the calling one among them; context: the same on all of
        them, and no other communicator's."""
        self._mesh, self._members, self._context = mesh, tuple(members), context
        self._rank = self._members.index(mesh.rank)
        self._children: Counter[str] = Counter()

    # -- who is there ----------------------------------------------------------------------------

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._members)

    def Get_attr(self, key: object) -> int:  # noqa: ARG002  the largest tag is what is asked for
        return _MAX_TAG

    def Get_group(self) -> SocketGroup:
        return SocketGroup(self._members)

    # -- making others ---------------------------------------------------------------------------

    def Dup(self) -> SocketCommunicator:
        return self._child("duplicate", self._members)

    def Idup(self) -> tuple[SocketCommunicator, Sending]:
        """Waits for nobody."""
        return self.Dup(), Sending([])

    def Split_type(self, kind: int) -> SocketCommunicator:  # noqa: ARG002  all are on one node
        return self.Dup()

    def Create_group(self, group: SocketGroup, tag: int = 0) -> SocketCommunicator:
        """Called by the members of `group` only."""
        return self._child(f"group {group.members} {tag}", group.members)

    def Free(self) -> None:
        with self._mesh.guard:
            self._mesh.inbox.forget(self._context)

    def _child(self, kind: str, members: Sequence[int]) -> SocketCommunicator:
        # Its members have made the same ones of this kind before, so they derive the same context.
        self._children[kind] += 1
        words = f"{self._context} {kind} {self._children[kind]}"
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        context = int.from_bytes(digest, "little")
        return SocketCommunicator(self._mesh, members, context=context)

    # -- messages --------------------------------------------------------------------------------

    def Isend(self, memory: Any, dest: int, tag: int = 0) -> Sending:
        view = memoryview(memory).cast("B")
        return self._mesh.send(self._members[dest], self._context, tag, view)

    def Irecv(self, memory: Any, source: int = ANY, tag: int = ANY) -> ReceiveRequest:
        view, source = memoryview(memory).cast("B"), self._in_world(source)
        return ReceiveRequest(self._mesh, self._context, view, source, tag, self._rank_of)

    def Improbe(
        self, source: int = ANY, tag: int = ANY, status: Status | None = None
    ) -> Arrival | None:
        self._mesh.progress()
        place = self._in_world(source)
        with self._mesh.guard:
            arrival = self._mesh.inbox.take(self._context, place, tag)
            is_dead = arrival is None and place != ANY and self._mesh.inbox.is_dead(place)
        if is_dead:
            raise DeadPeerError(f"rank {place} failed: its process is gone")
        if arrival is None:
            return None
        if status is not None:
            status.source, status.count = self._rank_of(arrival.source), arrival.num_bytes
        return arrival

    def _in_world(self, rank: int) -> int:
        return ANY if rank == ANY else self._members[rank]

    def _rank_of(self, in_world: int) -> int:
        return self._members.index(in_world)
