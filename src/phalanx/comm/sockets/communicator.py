"""A communicator over sockets, with the methods of mpi4py's that the engine uses."""

# ruff: noqa: N802

from __future__ import annotations

import hashlib
import itertools
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.sockets.inbox import ANY
from phalanx.comm.sockets.mesh import SocketMesh
from phalanx.comm.sockets.requests import (
    JoinedRequest,
    MatchedMessage,
    ReceiveRequest,
    SendRequest,
    Status,
)
from phalanx.comm.wait import WaitTimeoutError

_MAX_TAG = 2**31 - 1
_POLL_INTERVAL_S = 1e-3


class SocketGroup:
    """Ranks of a communicator: a group, as mpi4py calls it."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = tuple(members)

    def Incl(self, ranks: Sequence[int]) -> SocketGroup:
        return SocketGroup([self.members[rank] for rank in ranks])

    def Free(self) -> None:
        pass


class SocketCommunicator:
    """Some ranks of a mesh, in an order, with messages that meet no others.

    Its own collectives are for set-up: they take p² messages.
    """

    def __init__(
        self,
        mesh: SocketMesh,
        members: Sequence[int],
        *,
        context: int = 0,
        timeout_s: float = 300.0,
    ) -> None:
        """members: ranks in the world, the calling one among them; context: the same on all of
        them, and no other communicator's. It is even; context + 1 is for collectives."""
        self._mesh, self._members, self._context = mesh, tuple(members), context
        self._timeout_s = timeout_s
        self._rank = self._members.index(mesh.rank)
        self._sequence = itertools.count()
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

    def Idup(self) -> tuple[SocketCommunicator, JoinedRequest]:
        return self.Dup(), self.Ibarrier()

    def Split_type(self, kind: int) -> SocketCommunicator:  # noqa: ARG002  all are on one node
        return self.Dup()

    def Split(self, color: int, key: int = 0) -> SocketCommunicator:
        wanted = self.allgather((color, key))
        ranks = [rank for rank, (other, _) in enumerate(wanted) if other == color]
        ranks.sort(key=lambda rank: wanted[rank][1])
        return self._child(f"color {color}", [self._members[rank] for rank in ranks])

    def Create_group(self, group: SocketGroup, tag: int = 0) -> SocketCommunicator:
        """Called by the members of `group` only."""
        return self._child(f"group {group.members} {tag}", group.members)

    def Free(self) -> None:
        with self._mesh.guard:
            self._mesh.inbox.forget(self._context)
            self._mesh.inbox.forget(self._context + 1)

    def _child(self, kind: str, members: Sequence[int]) -> SocketCommunicator:
        # Its members have made the same ones of this kind before, so they derive the same context.
        self._children[kind] += 1
        words = f"{self._context} {kind} {self._children[kind]}"
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        context = int.from_bytes(digest, "little") & ~1
        return SocketCommunicator(self._mesh, members, context=context, timeout_s=self._timeout_s)

    # -- messages --------------------------------------------------------------------------------

    def Isend(self, memory: Any, dest: int, tag: int = 0) -> SendRequest:
        view = memoryview(memory).cast("B")
        return SendRequest(
            self._mesh, self._mesh.send(self._members[dest], self._context, tag, view), memory
        )

    def Irecv(self, memory: Any, source: int = ANY, tag: int = ANY) -> ReceiveRequest:
        return self._receive(memoryview(memory).cast("B"), source, self._context, tag)

    def Improbe(
        self, source: int = ANY, tag: int = ANY, status: Status | None = None
    ) -> MatchedMessage | None:
        self._mesh.progress()
        with self._mesh.guard:
            arrival = self._mesh.inbox.take(self._context, self._in_world(source), tag)
        if arrival is None:
            return None
        if status is not None:
            status.source, status.count = self._rank_of(arrival.source), arrival.num_bytes
        return MatchedMessage(arrival)

    # -- collectives of a few bytes --------------------------------------------------------------

    def Ibarrier(self) -> JoinedRequest:
        tag = next(self._sequence)
        for peer in self._others():
            self._mesh.send(self._members[peer], self._context + 1, tag, memoryview(b""))
        return JoinedRequest(
            [
                self._receive(memoryview(bytearray()), peer, self._context + 1, tag)
                for peer in self._others()
            ]
        )

    def allgather(self, value: Any) -> list[Any]:
        tag = next(self._sequence)
        data = pickle.dumps(value)
        for peer in self._others():
            self._mesh.send(self._members[peer], self._context + 1, tag, memoryview(data))
        found = {peer: pickle.loads(self._await(peer, tag)) for peer in self._others()}
        return [value if rank == self._rank else found[rank] for rank in range(self.Get_size())]

    def bcast(self, value: Any, root: int = 0) -> Any:
        tag = next(self._sequence)
        if self._rank != root:
            return pickle.loads(self._await(root, tag))
        data = pickle.dumps(value)
        for peer in self._others():
            self._mesh.send(self._members[peer], self._context + 1, tag, memoryview(data))
        return value

    def _await(self, peer: int, tag: int) -> memoryview:
        source, until_s = self._members[peer], time.monotonic() + self._timeout_s
        while True:
            self._mesh.progress()
            with self._mesh.guard:
                arrival = self._mesh.inbox.take(self._context + 1, source, tag)
                is_dead = self._mesh.inbox.is_dead(source)
            if arrival is not None:
                return arrival.memory
            if is_dead:
                raise PeerFailedError(f"rank {source} failed: its process is gone")
            if time.monotonic() > until_s:
                raise WaitTimeoutError(
                    f"rank {self._mesh.rank} waited {self._timeout_s:g} s in set-up for "
                    f"rank {source}"
                )
            self._mesh.idle(_POLL_INTERVAL_S)

    def _receive(self, memory: memoryview, source: int, context: int, tag: int) -> ReceiveRequest:
        return ReceiveRequest(
            self._mesh, context, memory, self._in_world(source), tag, self._rank_of
        )

    def _others(self) -> list[int]:
        return [rank for rank in range(self.Get_size()) if rank != self._rank]

    def _in_world(self, rank: int) -> int:
        return ANY if rank == ANY else self._members[rank]

    def _rank_of(self, in_world: int) -> int:
        return self._members.index(in_world)
