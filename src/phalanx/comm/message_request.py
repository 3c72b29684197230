"""Messages between two ranks, as users send and receive them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from phalanx.comm.buffer import Buffer
from phalanx.comm.communicators import FIRST_USER_TAG
from phalanx.comm.errors import PeerFailedError
from phalanx.comm.flight_recorder import NETWORK
from phalanx.comm.in_flight import CANCEL_S
from phalanx.comm.messages import (
    MessageTransport,
    PendingMessages,
    chunks_of,
    moved_by,
    ring_for,
)
from phalanx.comm.mpi import mpi
from phalanx.comm.traffic import Traffic
from phalanx.comm.wait import WaitTimeoutError, wait_until
from phalanx.records.spans import Detail, SpanRecorder, now_ns


class MessageRequest:
    """A message that the user sends or receives.

    A receive whose wait ends with an error, or which is dropped before it is done, is cancelled;
    a message that comes later goes to the next receive. What was sent is sent in any case.
    """

    def __init__(
        self, transport: MessageTransport, tag: int, spans: SpanRecorder | None = None
    ) -> None:
        """tag: a user's. spans: recorder to which `wait` adds its span in a traced run."""
        self._detector, self._tag, self._spans = transport.detector, tag, spans
        self._traffic, self._is_remote = transport.traffic, transport.is_remote
        self._moved, self._dest = Traffic(0, 0, 0), -1
        self._pending, self._in_flight = PendingMessages(transport), transport.in_flight
        self._later: Sequence[Buffer] = ()
        self._activity, self._whom = "", ""
        self._is_over = False
        self._error: Exception | None = None
        self._guard = threading.Lock()  # serialises calls of MPI about this message
        self.source: int | None = None
        self._in_flight.add(self)

    def __del__(self) -> None:
        if not self._is_over:
            self._in_flight.abandon(self._pending)

    def send(self, buffer: Buffer, dest: int) -> None:
        self._whom = f"rank {self._detector.labels.full(dest)}"
        self._activity = f"send to {self._whom}, tag {self._tag},"
        self._pending.send(buffer, dest, FIRST_USER_TAG + self._tag)
        self._moved, self._dest = moved_by([(buffer, dest)], [], self._is_remote), dest
        ring_for(self._detector, [(buffer, dest)])

    def receive(self, buffer: Buffer, source: int | None) -> None:
        """Begin to receive. The first chunk of a long message from any source fixes the source."""
        self._whom = "any rank" if source is None else f"rank {self._detector.labels.full(source)}"
        self._activity = f"receive from {self._whom}, tag {self._tag},"
        self._moved = Traffic(0, buffer.num_bytes, 0)
        tag = FIRST_USER_TAG + self._tag
        if source is None:
            first, *self._later = chunks_of(buffer)
            self._pending.receive(first, mpi().ANY_SOURCE, tag)
        else:
            self._pending.receive(buffer, source, tag)

    def test(self) -> bool:
        """Return whether it is complete; makes progress.

        Raises: MismatchError when the message is longer or shorter than the buffer; what ended it.
        """
        with self._guard:
            if self._error is not None:
                raise self._error
            try:
                return self._is_over or self._test()
            except Exception as error:
                self._end(error)
                raise

    def _test(self) -> bool:
        while self._pending.test(self._activity):
            self.source = self._pending.source
            if not self._later:
                self._close()
                return True
            assert self.source is not None, "the first piece has come"
            tag = FIRST_USER_TAG + self._tag
            for piece in self._later:
                self._pending.receive(piece, self.source, tag)
            self._later = ()
        return False

    def end(self, error: Exception) -> None:
        """End it with `error`, unless it is complete."""
        with self._guard:
            if not self._is_over:
                self._end(error)

    def _end(self, error: Exception) -> None:
        self._error, self._is_over = error, True
        self._in_flight.abandon(self._pending)

    def _withdraw(self, error: Exception) -> bool:
        """Cancel a receive; False when the message has arrived after all."""
        with self._guard:
            if self._is_over:
                return self._error is not None
            pending = self._pending
            pending.cancel()
            with suppress(WaitTimeoutError):
                wait_until(
                    pending.settle_receives,
                    self._detector.policy,
                    timeout_s=CANCEL_S,
                    on_timeout=lambda: "a receive that is under way cannot be cancelled",
                )
            if pending.settle() and not pending.was_cancelled and not self._later:
                self.source = pending.source
                self._close()
                return False
            self._end(error)
            return True

    def _close(self) -> None:
        """Once, however often somebody asks whether it is done."""
        self._is_over = True
        if self._traffic is not None:
            if self._is_network:
                self._moved = self._moved._replace(
                    network_received_bytes=self._moved.received_bytes
                )
            self._traffic.add(self._moved)
        if self.source is not None and self._detector.bell is not None:
            self._detector.bell.ring(self.source)

    @property
    def _is_network(self) -> bool:
        """Return whether the peer, once it is known, is on another node."""
        return self._is_remote[self._dest if self.source is None else self.source]

    def wait(self, timeout_s: float | None = None) -> None:
        """Raises: WaitTimeoutError naming the peer; PeerFailedError; MismatchError."""
        began_ns = now_ns()
        before, self._detector.activity = self._detector.activity, self._activity
        try:
            self._detector.until(
                self.test, timeout_s, whom=lambda: self._whom, peers=self._pending.peers
            )
        except (WaitTimeoutError, PeerFailedError) as error:
            if self._withdraw(error):
                raise
        finally:
            self._detector.activity = before
        if self._traffic is not None:
            self._traffic.add_time((now_ns() - began_ns) / 1e9, is_network=self._is_network)
        if self._spans is not None:
            self._add_span(self._spans, began_ns)

    def _add_span(self, spans: SpanRecorder, began_ns: int) -> None:
        if self.source is None:
            spans.add(self._activity.split(",")[0], NETWORK, began_ns, now_ns())
            return
        peer = self._detector.labels.members[self.source]
        detail: Detail = {"waited for": peer, "bytes": self._moved.received_bytes}
        spans.add(f"waiting for rank {peer}", NETWORK, began_ns, now_ns(), detail)
