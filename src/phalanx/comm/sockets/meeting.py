"""Connecting the ranks of a node: each listens at an address that the others are told."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.comm.sockets.mesh import SocketMesh
from phalanx.comm.wait import WaitTimeoutError

_HELLO = struct.Struct("<q16s")  # the caller's rank and the word of the one that is called
_CREDENTIALS = struct.Struct("iII")  # process, user, group


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a rank listens. A name in the system's memory, not a file: nothing is left behind."""

    host: str
    machine: str
    """The same for all processes of one running system, whatever their containers are called."""
    name: str
    word: str
    """That callers must know."""


class Listener:
    """Takes the calls of the other ranks of this node."""

    def __init__(self, num_ranks: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        word = secrets.token_hex(8)
        self.address = Address(
            host=socket.gethostname(),
            machine=_machine(),
            name=f"phalanx-{os.getpid()}-{secrets.token_hex(8)}",
            word=word,
        )
        self._socket.bind(f"\0{self.address.name}")
        self._socket.listen(num_ranks)

    def connect(self, rank: int, addresses: Sequence[Address], timeout_s: float) -> SocketMesh:
        """Connect to all other ranks, which do the same.

        addresses: of all ranks, of this one too.
        Raises: WaitTimeoutError, ConnectionError naming a rank that cannot be reached.
        """
        until_s = time.monotonic() + timeout_s
        connections: dict[int, socket.socket] = {}
        try:
            for peer in range(rank):
                connections[peer] = _call(rank, peer, addresses[peer])
            while len(connections) < len(addresses) - 1:
                caller, connection = self._take_call(until_s, rank, len(addresses))
                if caller is not None:
                    connections[caller] = connection
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
        finally:
            self._socket.close()
        return SocketMesh(rank, connections)

    def _take_call(
        self, until_s: float, rank: int, num_ranks: int
    ) -> tuple[int | None, socket.socket]:
        self._socket.settimeout(max(1e-3, until_s - time.monotonic()))
        try:
            connection, _ = self._socket.accept()
            connection.settimeout(max(1e-3, until_s - time.monotonic()))
            text = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise WaitTimeoutError(f"rank {rank} was not called by all of the others") from None
        if len(text) == _HELLO.size and _user_of(connection) == os.geteuid():
            peer, word = _HELLO.unpack(text)
            if word.decode() == self.address.word and rank < peer < num_ranks:
                return peer, connection
        connection.close()  # a stranger
        return None, connection


def _call(rank: int, peer: int, address: Address) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{address.name}")
        connection.sendall(_HELLO.pack(rank, address.word.encode()))
    except OSError as error:
        connection.close()
        raise ConnectionError(
            f"rank {rank} cannot reach rank {peer} on this node ({error.strerror}): the processes "
            "are in containers with networks of their own, or one of them has ended"
        ) from error
    return connection


def _user_of(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(data)[1]
    return user


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
