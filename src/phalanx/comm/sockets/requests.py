"""Receives and statuses with the methods of mpi4py's that the engine uses."""

# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.sockets.inbox import Arrival
from phalanx.comm.sockets.mesh import SocketMesh

ERR_TRUNCATE, ERR_OTHER = 15, 16  # values of mpi4py


class SocketError(RuntimeError):
    """A message that is longer than the memory of its receive."""

    def Get_error_class(self) -> int:
        return ERR_TRUNCATE


class DeadPeerError(SocketError, PeerFailedError):
    """The process of the rank that a message was to come from is gone."""

    def Get_error_class(self) -> int:
        return ERR_OTHER


class Status:
    """The source and the length of a message."""

    def __init__(self) -> None:
        self.source, self.count, self.is_cancelled = -1, 0, False

    def Get_source(self) -> int:
        return self.source

    def Get_count(self) -> int:
        return self.count

    def Is_cancelled(self) -> bool:
        return self.is_cancelled


class ReceiveRequest:
    """A posted receive, and in the end its message."""

    def __init__(
        self,
        mesh: SocketMesh,
        context: int,
        memory: memoryview,
        source: int,
        tag: int,
        rank_of: Callable[[int], int],
    ) -> None:
        """source: rank in the world, or ANY; rank_of: the communicator's number of such a rank."""
        self.memory, self.source, self.tag = memory, source, tag
        self._mesh, self._context, self._rank_of = mesh, context, rank_of
        self._status = Status()
        self._error: Exception | None = None
        self._is_done = self._was_reported = False
        with mesh.guard:
            mesh.inbox.post(context, self)

    def complete(self, arrival: Arrival) -> None:
        self._status.source = self._rank_of(arrival.source)
        self._status.count = arrival.num_bytes
        if arrival.num_bytes > len(self.memory):
            self._error = SocketError(f"a message of {arrival.num_bytes} bytes is too long")
        else:
            own = self.memory[: arrival.num_bytes]
            if arrival.memory.obj is not own.obj:  # it came before this receive
                own[:] = arrival.memory
        self._is_done = True

    def fail(self, rank: int) -> None:
        self._error = DeadPeerError(f"rank {rank} failed: its process is gone")
        self._is_done = True

    def __bool__(self) -> bool:
        """False once its end was reported, as a null request of MPI."""
        return not self._was_reported

    def Test(self, status: Status | None = None) -> bool:
        if not self._is_done:
            self._mesh.progress()
        if not self._is_done:
            return False
        self._was_reported = True
        if status is not None:
            status.__dict__.update(self._status.__dict__)
        if self._error is not None:
            raise self._error
        return True

    def Cancel(self) -> None:
        """Give it up, unless its message has begun to come in."""
        with self._mesh.guard:
            if self._mesh.inbox.withdraw(self._context, self):
                self._status.is_cancelled = self._is_done = True
