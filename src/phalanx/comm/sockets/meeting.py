"""Connecting the ranks of a node: each listens at an address that the others are told."""

from __future__ import annotations

import errno
import os
import secrets
import selectors
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
_CALL_AGAIN_S = 1e-3


@dataclass(frozen=True, kw_only=True)
class Address:
    """Address that a rank listens on: a name in the system's memory, not a file, so none is left
    over."""

    host: str
    machine: str
    """The same for all processes of one running system, whatever their containers are called."""
    name: str
    word: str
    """Secret word that callers must know."""


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
        self._socket.listen(max(num_ranks, socket.SOMAXCONN))
        self._socket.setblocking(False)

    def connect(self, rank: int, addresses: Sequence[Address], timeout_s: float) -> SocketMesh:
        """Connect to all other ranks, which do the same.

        addresses: of all ranks, of this one too.
        Raises: WaitTimeoutError, ConnectionError naming a rank that cannot be reached.
        """
        until_s = time.monotonic() + timeout_s
        connections: dict[int, socket.socket] = {}
        try:
            for peer in range(rank):
                connections[peer] = _call(rank, peer, addresses[peer], until_s)
            self._take_calls({*range(rank + 1, len(addresses))}, connections, until_s)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
        finally:
            self._socket.close()
        return SocketMesh(rank, connections)

    def _take_calls(
        self, missing: set[int], connections: dict[int, socket.socket], until_s: float
    ) -> None:
        """Take the calls of the ranks `missing`, beside whatever strangers send or do not send.

        Raises: WaitTimeoutError.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while missing:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        names = ", ".join(map(str, sorted(missing)[:5]))
                        raise WaitTimeoutError(f"ranks not connected on this node: {names}")
                    for key, _ in selector.select(left_s):
                        if isinstance(key.data, _Caller):
                            self._hear(key.data, selector, missing, connections)
                        elif (caller := self._accept()) is not None:
                            selector.register(caller.socket, selectors.EVENT_READ, caller)
            finally:
                for key in [*selector.get_map().values()]:
                    if isinstance(key.data, _Caller):
                        key.data.socket.close()

    def _accept(self) -> _Caller | None:
        """Return a caller of this user; the others are turned away, whatever they want to say."""
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it has gone again
            return None
        if _user_of(connection) != os.geteuid():
            connection.close()
            return None
        connection.setblocking(False)
        return _Caller(connection)

    def _hear(
        self,
        caller: _Caller,
        selector: selectors.BaseSelector,
        missing: set[int],
        connections: dict[int, socket.socket],
    ) -> None:
        """Read what a caller has sent of its hello; connect a rank, turn a stranger away."""
        try:
            new = caller.socket.recv(_HELLO.size - len(caller.hello))
        except OSError:
            new = b""
        caller.hello += new
        if new and len(caller.hello) < _HELLO.size:
            return
        selector.unregister(caller.socket)
        peer, word = _HELLO.unpack(caller.hello.ljust(_HELLO.size, b"\0"))
        if peer in missing and word == self.address.word.encode():
            missing.remove(peer)
            connections[peer] = caller.socket
        else:
            caller.socket.close()


@dataclass
class _Caller:
    socket: socket.socket
    hello: bytes = b""


def _call(rank: int, peer: int, address: Address, until_s: float) -> socket.socket:
    """Call a rank. Raises: ConnectionError; WaitTimeoutError while too many others call it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        while (code := connection.connect_ex(f"\0{address.name}")) == errno.EAGAIN:
            if time.monotonic() > until_s:
                raise WaitTimeoutError(f"rank {peer} refuses rank {rank} on this node")
            time.sleep(_CALL_AGAIN_S)
        if code:
            raise OSError(code, os.strerror(code))
        connection.sendall(_HELLO.pack(rank, address.word.encode()))
    except WaitTimeoutError:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise ConnectionError(
            f"rank {rank} cannot reach rank {peer} on this node ({error.strerror}): the processes "
            "are in containers with separate networks, or one of them has ended"
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
