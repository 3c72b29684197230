"""Buffers as messages of MPI, awaited with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from phalanx.comm.buffer import Buffer
from phalanx.comm.communicators import TAGS
from phalanx.comm.dtypes import DType
from phalanx.comm.errors import MismatchError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.in_flight import InFlight, PendingOperation
from phalanx.comm.layout import chunks
from phalanx.comm.link_emulator import LinkEmulator
from phalanx.comm.mpi import mpi
from phalanx.comm.traffic import Traffic, TrafficCounter
from phalanx.comm.transport import Messages, ScratchArena, Transport

# Open MPI 5.0 fails on 2³¹ elements and more, and all messages here are of bytes.
MAX_BYTES = 2**30
# Limit between nodes. Longer messages wait for the receiver's answer, which queues behind its
# sends: a link then carries one direction at a time. See `world.MPI_VARIABLES`.
MAX_NETWORK_BYTES = 256 * 1024
# Up to here who sends need not wait for who receives, in all MPIs; longer ones may need an answer.
EAGER_BYTES = 2048
HINT = ": ranks differ in collective, count or dtype; with PHALANX_CHECK=1 the error says which"


class MessageTransport(Transport):
    """Exchanges among the ranks of a communicator, for algorithms.

    All messages of a collective carry its number as their tag.
    """

    def __init__(
        self,
        communicator: Any,
        detector: FailureDetector,
        link_emulator: LinkEmulator | None = None,
        *,
        first_tag: int = 0,
        nodes: Sequence[int] = (),
    ) -> None:
        """link_emulator: delays messages; None: they are sent at once. first_tag: of those that
        only this transport uses on `communicator`. nodes: the number of each rank's node; empty:
        all are on one."""
        self.first_tag = first_tag
        self.communicator, self.detector, self.link_emulator = communicator, detector, link_emulator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.is_remote = remote_ranks(nodes, self.rank, self.size)
        """True if each rank is on another node."""
        self.max_bytes = [MAX_NETWORK_BYTES if far else MAX_BYTES for far in self.is_remote]
        """Most bytes of a message to or from each rank: longer buffers go in several."""
        self.tag = 0
        self.timeout_s: float | None = None
        self.traffic: TrafficCounter | None = None
        self._scratch = ScratchArena()
        self._started: list[MessageExchange] = []
        self.in_flight = InFlight()

    def begin(self, timeout_s: float | None) -> None:
        """Begin a collective whose waits end after `timeout_s`; None: that of the detector."""
        self.timeout_s = timeout_s
        self._scratch.release()

    def start(self, sends: Messages, receives: Messages) -> MessageExchange:
        exchange = MessageExchange(self, sends, receives)
        self._started.append(exchange)
        return exchange

    def scratch(self, count: int, dtype: DType) -> Buffer:
        return self._scratch.take(count, dtype)

    def finish(self, pending: PendingOperation) -> None:
        """Raises: what ended the wait; all messages under way are then called back."""
        try:
            while not pending.is_done:
                self.detector.until(pending.advance, self.timeout_s, peers=pending.peers)
        except BaseException:
            started = [exchange.pending for exchange in self._started]
            for unfinished in dict.fromkeys((pending, *started)):
                self.in_flight.abandon(unfinished)
            self._started.clear()
            raise

    def finished(self, exchange: MessageExchange) -> None:
        """It is over, and counted where somebody counts."""
        self._started.remove(exchange)
        if self.traffic is not None:
            self.traffic.add(exchange.moved)
            self.traffic.add_time(exchange.elapsed_s, is_network=exchange.is_network)


class MessageExchange:
    """Messages in flight of one collective."""

    __slots__ = ("_messages", "_transport", "elapsed_s", "pending")

    def __init__(self, transport: MessageTransport, sends: Messages, receives: Messages) -> None:
        began = time.perf_counter()
        self._transport, self._messages = transport, (sends, receives)
        self.pending = pending = PendingMessages(transport)
        tag = transport.first_tag + transport.tag % TAGS
        for buffer, source in receives:
            pending.receive(buffer, source, tag, transport.max_bytes[source])
        for buffer, dest in sends:
            pending.send(buffer, dest, tag, transport.max_bytes[dest])
        ring_for(transport.detector, sends)
        self.elapsed_s = time.perf_counter() - began
        """Seconds in `start` and `finish`: what this rank does between is no time of the
        exchange."""

    def finish(self) -> None:
        began = time.perf_counter()
        self._transport.finish(self.pending)
        self.elapsed_s += time.perf_counter() - began
        self._transport.finished(self)
        ring_for(self._transport.detector, self._messages[1], at_least=EAGER_BYTES)

    @property
    def moved(self) -> Traffic:
        return moved_by(*self._messages, self._transport.is_remote)

    @property
    def is_network(self) -> bool:
        """Return whether ranks of other nodes take part."""
        is_remote = self._transport.is_remote
        return any(is_remote[peer] for messages in self._messages for _, peer in messages)


class PendingMessages(PendingOperation):
    """Messages in flight of one exchange."""

    def __init__(self, transport: MessageTransport) -> None:
        self._detector, self._link_emulator = transport.detector, transport.link_emulator
        self._communicator = transport.communicator
        self._receives: list[tuple[Any, int, Buffer, int]] = []
        self._sends: list[tuple[Any, Buffer, int]] = []
        self._status = mpi().Status()
        self.source: int | None = None
        self.was_cancelled = False

    def send(self, buffer: Buffer, dest: int, tag: int, max_bytes: int = MAX_BYTES) -> None:
        communicator = self._communicator
        for piece in chunks_of(buffer, max_bytes):
            memory = memory_of(piece)
            if self._link_emulator is None:
                request = communicator.Isend(memory, dest, tag)
            else:
                request = self._link_emulator.send(communicator, memory, piece.num_bytes, dest, tag)
            self._sends.append((request, piece, dest))

    def receive(self, buffer: Buffer, source: int, tag: int, max_bytes: int = MAX_BYTES) -> None:
        for piece in chunks_of(buffer, max_bytes):
            request = self._communicator.Irecv(memory_of(piece), source, tag)
            self._receives.append((request, piece.num_bytes, piece, source))

    def advance(self) -> bool:
        before = len(self._receives) + len(self._sends)
        self.is_done = self.test()
        return self.is_done or len(self._receives) + len(self._sends) < before

    def test(self, activity: str | None = None) -> bool:
        """Return whether all are complete; makes progress.

        activity: for errors; None: that of the failure detector.

        Raises: MismatchError when a message is longer or shorter than its buffer.
        """
        while self._receives:
            request, num_bytes, _, _ = self._receives[0]
            length = self._length_of(request)
            if length is None:
                return False
            if length != num_bytes:
                label = self._detector.labels.short
                got = "more" if length > num_bytes else f"{length}"
                raise MismatchError(
                    f"rank {label(self._detector.rank)} in {activity or self._detector.activity} "
                    f"expected {num_bytes} bytes from rank {label(self._status.Get_source())} and "
                    f"got {got}{HINT}"
                )
            self.source = self._status.Get_source()
            del self._receives[0]
        while self._sends:
            if not self._sends[0][0].Test():
                return False
            del self._sends[0]
        return True

    def peers(self) -> Sequence[int]:
        """The ranks that something is still received from or sent to."""
        sources = [source for _, _, _, source in self._receives if source >= 0]
        return [*sources, *(dest for _, _, dest in self._sends)]

    def cancel(self) -> None:
        """Call back what has not begun to arrive; what was sent is left to MPI."""
        for request, _, _, _ in self._receives:
            if request:
                request.Cancel()

    def settle(self) -> bool:
        """Return whether MPI no longer uses the buffers; called after `cancel`."""
        self.settle_receives()
        self._sends = [send for send in self._sends if not self._is_over(send[0].Test)]
        return not self._receives and not self._sends

    def settle_receives(self) -> bool:
        """Return whether MPI no longer uses the buffers of receives; called after `cancel`."""
        left = []
        for receive in self._receives:
            request, num_bytes, _, _ = receive
            if request and not self._is_over(partial(request.Test, self._status)):
                left.append(receive)
            elif self._status.Is_cancelled() or self._status.Get_count() != num_bytes:
                self.was_cancelled = True
            else:
                self.source = self._status.Get_source()
        self._receives = left
        return not left

    def _is_over(self, test: Callable[[], bool]) -> bool:
        """Return whether MPI has completed a request that no call waits for."""
        try:
            return test()
        except mpi().Exception:
            self.was_cancelled = True  # it has failed
            return True

    def _length_of(self, request: Any) -> int | None:
        """Bytes of an arrived message; None before."""
        library = mpi()
        try:
            return int(self._status.Get_count()) if request.Test(self._status) else None
        except library.Exception as error:
            if error.Get_error_class() == library.ERR_TRUNCATE:
                return MAX_BYTES + 1  # than which no buffer is longer
            raise


def ring_for(detector: FailureDetector, messages: Messages, at_least: int = 0) -> None:
    """Wake the peers of these messages when the messages are long enough."""
    bell = detector.bell
    if bell is not None:
        for buffer, rank in messages:
            if buffer.num_bytes >= at_least:
                bell.ring(rank)


def chunks_of(buffer: Buffer, max_bytes: int = MAX_BYTES) -> Sequence[Buffer]:
    """`buffer` as messages: at least one, none of more than `max_bytes` bytes."""
    if buffer.num_bytes <= max_bytes:
        return (buffer,)
    whole = buffer.opaque()
    return [whole.part(cut.start, cut.stop) for cut in chunks(whole.count, max_bytes)]


def moved_by(sends: Messages, receives: Messages, is_remote: Sequence[bool]) -> Traffic:
    """Return the traffic of these messages. is_remote: whether each rank is on another node."""
    given = [(buffer.num_bytes, is_remote[dest]) for buffer, dest in sends if buffer.count]
    taken = [(buffer.num_bytes, is_remote[source]) for buffer, source in receives]
    return Traffic(
        sum(num_bytes for num_bytes, _ in given),
        sum(num_bytes for num_bytes, _ in taken),
        len(given),
        sum(num_bytes for num_bytes, is_far in given if is_far),
        sum(num_bytes for num_bytes, is_far in taken if is_far),
    )


def remote_ranks(nodes: Sequence[int], rank: int, size: int) -> list[bool]:
    """Return whether each rank is on another node than `rank`. nodes: empty: all are on one."""
    return [node != nodes[rank] for node in nodes] if nodes else [False] * size


def memory_of(buffer: Buffer) -> Any:
    """Return the memory of the buffer for mpi4py."""
    return mpi().buffer.fromaddress(buffer.address, buffer.num_bytes)
