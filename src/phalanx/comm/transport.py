"""What an algorithm on messages needs to know: who it is, and how to exchange buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType

Messages = Sequence[tuple[Buffer, int]]
"""Buffers, each with the rank that it goes to or comes from."""


class Transport(Protocol):
    """Ranks 0 … size-1 and the messages between them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send and receive all these buffers at the same time; return when that is done.

        Messages between two ranks arrive in the order in which they were sent.
        """


class Members:
    """Some of the ranks of another transport, renumbered in the order given."""

    def __init__(self, transport: Transport, members: Sequence[int]) -> None:
        """members: of `transport`, the calling rank among them."""
        self._transport, self._members = transport, members
        self.rank = members.index(transport.rank)
        self.size = len(members)

    def exchange(self, sends: Messages, receives: Messages) -> None:
        members = self._members
        self._transport.exchange(
            [(buffer, members[peer]) for buffer, peer in sends],
            [(buffer, members[peer]) for buffer, peer in receives],
        )


def scratch(count: int, dtype: DType) -> Buffer:
    """Memory for the time of a collective; it lives as long as the buffer."""
    memory = np.empty(count * dtype.itemsize, np.uint8)
    return Buffer(memory.ctypes.data, count, dtype, memory)
