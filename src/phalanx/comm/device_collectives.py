"""Collectives on device memory, such as a GPU's.

Buffers go from device to device as messages of a GPU-aware MPI, and the device itself copies and
reduces. Not by the collectives of the MPI library: Open MPI's nonblocking reductions crash on GPU
memory (open-mpi/ompi issues 9845 and 12045), and blocking ones cannot end with a timeout. So the
order of sums is that of the ranks here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives import dissemination, tree
from phalanx.comm.collectives.pairwise import SEGMENT_BYTES, shares_of
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.layout import chunks
from phalanx.comm.messages import MessageTransport
from phalanx.comm.transport import Messages, PendingExchange


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


class DeviceCollectives:
    """The same calls as those of `Group`, which documents them. When they return the device has
    nothing more to do for them."""

    def __init__(self, transport: MessageTransport, memory: DeviceOps) -> None:
        self._transport, self._memory = transport, memory
        self.rank, self.size = transport.rank, transport.size

    def start(self, sends: Messages, receives: Messages) -> PendingExchange:
        """MPI knows nothing of what the device is still doing."""
        self._memory.finish()
        return self._transport.start(sends, receives)

    def exchange(self, sends: Messages, receives: Messages) -> None:
        self.start(sends, receives).finish()

    def scratch(self, count: int, dtype: DType) -> Buffer:
        return self._memory.scratch(count, dtype)

    def barrier(self, *, timeout_s: float | None = None) -> None:
        self._transport.begin(timeout_s)
        dissemination.barrier(self._transport)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        for segment in chunks(buffer.count, max(1, SEGMENT_BYTES // buffer.dtype.itemsize)):
            shares = shares_of(buffer.part(segment.start, segment.stop), self.size)
            self._reduce_scatter(shares[self.rank], shares, op, divisor)
            self._all_gather(shares, shares[self.rank])
        self._memory.finish()

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        for segment in chunks(buffer.count, max(1, SEGMENT_BYTES // buffer.dtype.itemsize)):
            part = buffer.part(segment.start, segment.stop)
            if self.rank != root:
                self.exchange([(part, root)], [])
                continue
            terms = self._terms(part)
            self.exchange([], self._of_others(terms))
            self._memory.reduce_terms(terms, part, op, divisor)
        self._memory.finish()

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        self._transport.begin(timeout_s)
        tree.broadcast(self, buffer, root=root)

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        self._transport.begin(timeout_s)
        self._all_gather(outputs, part)
        self._memory.finish()

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        self._reduce_scatter(output, parts, op, divisor)
        self._memory.finish()

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        self.exchange(self._of_others(parts), self._of_others(outputs))
        self._memory.copy(parts[self.rank], outputs[self.rank])
        self._memory.finish()

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        if self.rank != root:
            self.exchange([(part, root)], [])
            return
        assert outputs is not None, "the root has outputs"
        self.exchange([], self._of_others(outputs))
        self._memory.copy(part, outputs[root])
        self._memory.finish()

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        self._transport.begin(timeout_s)
        if self.rank != root:
            self.exchange([], [(output, root)])
            return
        assert parts is not None, "the root has parts"
        self.exchange(self._of_others(parts), [])
        self._memory.copy(parts[root], output)
        self._memory.finish()

    def _reduce_scatter(
        self, output: Buffer, parts: Sequence[Buffer], op: ReduceOp, divisor: float
    ) -> None:
        terms = self._terms(parts[self.rank])
        self.exchange(self._of_others(parts), self._of_others(terms))
        self._memory.reduce_terms(terms, output, op, divisor)

    def _all_gather(self, outputs: Sequence[Buffer], part: Buffer) -> None:
        sends = [(part, rank) for _, rank in self._of_others(outputs)]
        self.exchange(sends, self._of_others(outputs))
        self._memory.copy(part, outputs[self.rank])

    def _terms(self, own: Buffer) -> list[Buffer]:
        """A place for what each rank gives; that of this rank is there already."""
        return [
            own if rank == self.rank else self.scratch(own.count, own.dtype)
            for rank in range(self.size)
        ]

    def _of_others(self, buffers: Sequence[Buffer]) -> list[tuple[Buffer, int]]:
        ranks = [(self.rank + i) % self.size for i in range(1, self.size)]
        return [(buffers[rank], rank) for rank in ranks]
