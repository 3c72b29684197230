"""Messages between memories of devices, such as GPUs.

Buffers go from device to device as messages of a GPU-aware MPI, and the device itself copies and
reduces. Not by the collectives of the MPI library: Open MPI's nonblocking reductions crash on GPU
memory (open-mpi/ompi issues 9845 and 12045), and blocking ones cannot end with a timeout. So the
order of sums is that of the ranks here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.messages import MessageTransport
from phalanx.comm.transport import Messages, PendingExchange, Transport


class DeviceOps(Protocol):
    """Operations of a device on its memory, executed in the order of the calls."""

    def scratch(self, count: int, dtype: DType) -> Buffer: ...

    def copy(self, source: Buffer, dest: Buffer) -> None:
        """The two may be the same memory, and are else apart."""

    def reduce_terms(
        self, terms: Sequence[Buffer], result: Buffer, op: ReduceOp, divisor: float
    ) -> None:
        """result becomes the reduction of `terms`, in their order; it may be one of them."""

    def finish(self) -> None:
        """Return when all submitted operations are complete."""


class DeviceTransport(Transport):
    """Transport of buffers in memory of a device, which is to `finish` after a collective."""

    def __init__(self, transport: MessageTransport, memory: DeviceOps) -> None:
        self._transport, self._memory = transport, memory
        self.rank, self.size, self.finish = transport.rank, transport.size, memory.finish

    def start(self, sends: Messages, receives: Messages) -> PendingExchange:
        """MPI knows nothing of what the device is still doing."""
        self.finish()
        return self._transport.start(sends, receives)

    def scratch(self, count: int, dtype: DType) -> Buffer:
        return self._memory.scratch(count, dtype)

    def copy(self, source: Buffer, dest: Buffer) -> None:
        self._memory.copy(source, dest)

    def reduce_terms(
        self, terms: Sequence[Buffer], result: Buffer, op: ReduceOp, divisor: float
    ) -> None:
        self._memory.reduce_terms(terms, result, op, divisor)
