"""The sockets between the ranks of a node, one for each pair, and the messages in them.

Nothing runs by itself: whoever asks for a message moves all of them on, as in MPI.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Mapping

from phalanx.comm.sockets.inbox import Arrival, Inbox

_HEADER = struct.Struct("<QqQ")  # context, tag, bytes of the message
_LONG_BYTES = 2**17  # longer ones do not fit into a socket at once
_STREAM_S, _STREAM_TURNS = 200e-6, 16  # wait for more of a long message, per call
_READ_BYTES = 2**24  # most read from one peer per call, so that others get their turn
_CLOSING_S = 1.0


class Sending:
    """A message that leaves, or has left; mpi4py's request."""

    __slots__ = ("_mesh", "is_done", "views")

    def __init__(self, views: list[memoryview], mesh: SocketMesh | None = None) -> None:
        """mesh: None: it has left."""
        self.views, self._mesh = views, mesh
        self.is_done = mesh is None

    def Test(self, status: object = None) -> bool:  # noqa: ARG002, N802  as mpi4py has it
        if self._mesh is not None and not self.is_done:
            self._mesh.progress()
        return self.is_done

    def advance(self, sent: int) -> None:
        """So many more bytes have left."""
        while self.views and sent >= len(self.views[0]):
            sent -= len(self.views.pop(0))
        if self.views:
            self.views[0] = self.views[0][sent:]
        self.is_done = not self.views


class _Connection:
    """A connected rank."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.socket = rank, connection
        self.sendings: deque[Sending] = deque()
        self.header = memoryview(bytearray(_HEADER.size))
        self.arrival: Arrival | None = None
        self.num_read = 0  # bytes of the header, or of the message
        self.takes_messages = True
        self.is_dead = False


class SocketMesh:
    """This rank's sockets. Any thread may call it."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket]) -> None:
        """connections: to every other rank of the world."""
        self.rank, self.size = rank, len(connections) + 1
        self.inbox = Inbox()
        self.guard = threading.RLock()
        self._peers = {peer: _Connection(peer, link) for peer, link in connections.items()}
        self._of_descriptor = {peer.socket.fileno(): peer for peer in self._peers.values()}
        self._poll = select.poll()
        for peer in self._peers.values():
            peer.socket.setblocking(False)
            self._poll.register(peer.socket, select.POLLIN)
        _OPEN.add(self)

    def send(self, dest: int, context: int, tag: int, memory: memoryview) -> Sending:
        with self.guard:
            if dest == self.rank:
                arrival = self.inbox.begin(context, dest, tag, len(memory))
                arrival.memory[:] = memory
                self.inbox.complete(arrival)
                return Sending([])
            peer = self._peers[dest]
            if not peer.takes_messages:
                return Sending([])  # the caller that waits for the answer gets the error
            header = memoryview(_HEADER.pack(context, tag, len(memory)))
            sending = Sending([header, memory] if len(memory) else [header], self)
            peer.sendings.append(sending)
            self._write(peer)
            return sending

    def progress(self) -> None:
        """Move all messages on that can move; does not wait for another thread that does so."""
        if not self.guard.acquire(blocking=False):
            return
        try:
            for _ in range(_STREAM_TURNS):
                self._move()
                long = [peer for peer in self._peers.values() if _is_long(peer)]
                if not long or not self._wait_for_more(long):
                    return
        finally:
            self.guard.release()

    def idle(self, wait_s: float) -> None:
        """Sleep until something comes in, at most `wait_s`."""
        self._poll.poll(wait_s * 1e3)

    def close(self) -> None:
        """Let what was sent leave, if its receivers take it soon, and close the sockets."""
        with self.guard:
            for _ in range(int(_CLOSING_S / 1e-3)):
                self._move()
                if not any(peer.sendings for peer in self._peers.values()):
                    break
                self.idle(1e-3)
            for peer in self._peers.values():
                self._lose(peer)

    def _move(self) -> None:
        for peer in self._peers.values():
            if peer.sendings:
                self._write(peer)
        for descriptor, _ in self._poll.poll(0):
            peer = self._of_descriptor[descriptor]
            try:
                self._read(peer)
            except BlockingIOError:
                continue
            except OSError:
                self._lose(peer)

    def _write(self, peer: _Connection) -> None:
        try:
            while peer.sendings:
                sending = peer.sendings[0]
                sending.advance(peer.socket.sendmsg(sending.views, [], socket.MSG_NOSIGNAL))
                if sending.is_done:
                    peer.sendings.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._end_sendings(peer)  # bytes already received can still be read

    def _read(self, peer: _Connection) -> None:
        """Read until no more has arrived. Raises: BlockingIOError then."""
        budget = _READ_BYTES
        while budget > 0:
            target = peer.header if peer.arrival is None else peer.arrival.memory
            count = peer.socket.recv_into(target[peer.num_read :])
            if count == 0:
                self._lose(peer)
                return
            budget -= count
            peer.num_read += count
            if peer.num_read < len(target):
                continue
            if peer.arrival is None:
                context, tag, num_bytes = _HEADER.unpack(peer.header)
                peer.arrival = self.inbox.begin(context, peer.rank, tag, num_bytes)
                peer.num_read = 0
                if num_bytes:
                    continue
            self.inbox.complete(peer.arrival)
            peer.arrival, peer.num_read = None, 0

    def _wait_for_more(self, long: list[_Connection]) -> bool:
        readers = [peer.socket for peer in long if peer.arrival is not None]
        writers = [peer.socket for peer in long if peer.sendings]
        return any(select.select(readers, writers, [], _STREAM_S))

    def _lose(self, peer: _Connection) -> None:
        if not peer.is_dead:
            peer.is_dead = True
            self._poll.unregister(peer.socket)
            self._end_sendings(peer)
            peer.socket.close()
            self.inbox.mark_dead(peer.rank)

    def _end_sendings(self, peer: _Connection) -> None:
        peer.takes_messages = False
        for sending in peer.sendings:
            sending.is_done = True
        peer.sendings.clear()


def _is_long(peer: _Connection) -> bool:
    if peer.is_dead:
        return False
    coming = peer.arrival is not None and peer.arrival.num_bytes > _LONG_BYTES
    return coming or any(len(view) > _LONG_BYTES for s in peer.sendings for view in s.views)


_OPEN: weakref.WeakSet[SocketMesh] = weakref.WeakSet()


def _leave() -> None:
    """Close the sockets in a forked child: the end of a rank must show, although its children live
    on."""
    for mesh in _OPEN:
        for peer in mesh._peers.values():
            with contextlib.suppress(OSError):
                peer.socket.close()


os.register_at_fork(after_in_child=_leave)
