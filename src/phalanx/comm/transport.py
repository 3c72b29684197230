"""Interface between the point-to-point algorithms and the messages that they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from phalanx.comm import array_kernels, kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.layout import CACHE_LINE_BYTES

Messages = Sequence[tuple[Buffer, int]]
"""Buffers, each with the rank that it goes to or comes from."""

MAX_ARENA_BYTES = 256 * 2**20  # memory reused by collectives


class PendingExchange(Protocol):
    """Messages in flight."""

    def finish(self) -> None:
        """Return when all have been sent and received; once."""


class Transport(ABC):
    """Ranks 0 … size-1 and the messages between them, of buffers in the memory of the host."""

    rank: int
    size: int

    @abstractmethod
    def start(self, sends: Messages, receives: Messages) -> PendingExchange:
        """Begin to send and receive all these buffers at the same time. Until that is finished, do
        not change what is sent, or use what is received.

        Messages between two ranks arrive in the order in which they were sent.
        """

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive these buffers; return when it is done."""
        self.start(sends, receives).finish()

    @abstractmethod
    def scratch(self, count: int, dtype: DType) -> Buffer:
        """Return uninitialised memory for the time of one collective."""

    def copy(self, source: Buffer, dest: Buffer) -> None:
        """The two may be the same memory, and are else apart."""
        array_kernels.copy(source, dest)

    def reduce_terms(
        self, terms: Sequence[Buffer], result: Buffer, op: ReduceOp, divisor: float
    ) -> None:
        """result becomes the reduction of `terms`, in their order; it may be one of them."""
        kernels.reduce_terms(terms, result, op, divisor)


class SubTransport(Transport):
    """Some of the ranks of another transport, renumbered in the order given."""

    def __init__(self, transport: Transport, members: Sequence[int]) -> None:
        """members: of `transport`, the calling rank among them."""
        self._transport, self._members = transport, members
        self.rank = members.index(transport.rank)
        self.size = len(members)

    def start(self, sends: Messages, receives: Messages) -> PendingExchange:
        return self._transport.start(self._to_parent_ranks(sends), self._to_parent_ranks(receives))

    def scratch(self, count: int, dtype: DType) -> Buffer:
        return self._transport.scratch(count, dtype)

    def _to_parent_ranks(self, messages: Messages) -> Messages:
        return [(buffer, self._members[peer]) for buffer, peer in messages]


class ScratchArena:
    """Memory that collectives use one after the other, so that the system need not clear new pages
    for each: that takes as long as the collective itself."""

    def __init__(self) -> None:
        self._kept = np.empty(0, np.uint8)
        self._begin = self._kept.ctypes.data
        self._taken = 0  # bytes in this collective; there may not be so many here yet

    def take(self, count: int, dtype: DType) -> Buffer:
        """Allocate memory that stays distinct until `release`."""
        start = self._taken
        self._taken += -(-count * dtype.itemsize // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        if self._taken <= self._kept.size:
            return Buffer(self._begin + start, count, dtype, self._kept)
        memory = np.empty(count * dtype.itemsize, np.uint8)
        return Buffer(memory.ctypes.data, count, dtype, memory)

    def release(self) -> None:
        """Begin a collective with nothing in use; grow the arena by what the last one lacked."""
        if self._kept.size < self._taken <= MAX_ARENA_BYTES:
            self._kept = np.empty(self._taken, np.uint8)
            self._begin = self._kept.ctypes.data
        self._taken = 0
