"""All-reduce by the MPI library's own algorithm, whichever that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.comm.blocking_call import BlockingCall
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives.accumulate import store_result
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.faults import checked_for_deaths, is_fault_tolerant
from phalanx.comm.in_flight import PendingOperation
from phalanx.comm.layout import chunks
from phalanx.comm.messages import MessageTransport, memory_of
from phalanx.comm.mpi import is_stand_in, mpi

BLOCKING_BYTES = 2**20
"""Vectors from here on are worth a thread, whose start takes long where many processes compute."""
MAX_COUNT = 2**30  # Open MPI 5.0 fails on 2³¹ elements and more

_DATATYPES = {
    **{"float32": "FLOAT", "float64": "DOUBLE"},
    **{"int32": "INT32_T", "int64": "INT64_T", "uint32": "UINT32_T", "uint64": "UINT64_T"},
    **{"complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX"},
}
_OPERATIONS = {
    ReduceOp.SUM: "SUM",
    ReduceOp.PRODUCT: "PROD",
    ReduceOp.MIN: "MIN",
    ReduceOp.MAX: "MAX",
    ReduceOp.BAND: "BAND",
    ReduceOp.BOR: "BOR",
    ReduceOp.BXOR: "BXOR",
}


def is_native(dtype: DType) -> bool:
    """Return whether MPI reduces elements of this type as our kernels do.

    It has no half types, or accumulates in them; integers of 8 and 16 bits wrap around in some
    libraries and stop at the largest value in others (Open MPI 5.0 with its AVX component).
    """
    return dtype.name in _DATATYPES and not is_stand_in()


def run(transport: MessageTransport, collective: Collective) -> None:
    """Execute an all-reduce, of (n,) elements of a dtype that MPI has.

    Cost:   the library's.
    Order:  the library's: MPI recommends, and does not promise, the same bits on every rank and
            in every run.
    """
    library, buffer, op = mpi(), collective.outputs[0], collective.reduction
    operation = getattr(library, _OPERATIONS[op])
    datatype = getattr(library, _DATATYPES[buffer.dtype.name])
    for chunk in chunks(buffer.count, MAX_COUNT):
        part = buffer.part(chunk.start, chunk.stop)
        message = [memory_of(part), part.count, datatype]
        with checked_for_deaths(transport.communicator):
            for pending in _operations(transport.communicator, message, operation, part):
                transport.finish(pending)
    store_result(buffer, buffer, op, collective.divisor)


def _operations(
    communicator: Any, message: Sequence[Any], operation: Any, part: Buffer
) -> Iterator[PendingOperation]:
    """Begin an all-reduce in place, in steps of which each begins when the one before is over.

    The blocking one of Open MPI knows of nodes, where its nonblocking one sends as if every rank
    were a node. It spins while it waits: it begins when all ranks have come. Where ranks may die
    it is not used, as two threads that hear of a death crash Open MPI.
    """
    in_place = mpi().IN_PLACE
    if part.num_bytes < BLOCKING_BYTES or is_fault_tolerant():
        yield LibraryCall(communicator.Iallreduce(in_place, message, operation), part)
        return
    yield LibraryCall(communicator.Ibarrier(), part)
    yield BlockingCall(lambda: communicator.Allreduce(in_place, message, operation), part)


class LibraryCall(PendingOperation):
    """A collective of the library on its way: MPI cannot call it back."""

    def __init__(self, request: Any, buffer: Buffer) -> None:
        self._request, self._buffer = request, buffer

    def advance(self) -> bool:
        self.is_done = bool(self._request.Test())
        return self.is_done

    def settle(self) -> bool:
        try:
            return self.advance()
        except mpi().Exception:
            return True
