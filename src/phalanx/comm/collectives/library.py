"""All-reduce by the MPI library's own algorithm, whichever that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives.accumulate import store_result
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.faults import checked_for_deaths
from phalanx.comm.layout import chunks
from phalanx.comm.messages import MessageTransport, memory_of
from phalanx.comm.mpi import is_stand_in, mpi

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
            request = transport.communicator.Iallreduce(library.IN_PLACE, message, operation)
            transport.finish(LibraryCall(request, part))
    store_result(buffer, buffer, op, collective.divisor)


class LibraryCall:
    """A collective of the library on its way."""

    def __init__(self, request: Any, buffer: Buffer) -> None:
        self._request, self._buffer = request, buffer
        self.is_done = False

    def advance(self) -> bool:
        self.is_done = bool(self._request.Test())
        return self.is_done

    def peers(self) -> Sequence[int]:
        """Unknown: MPI does not say whom it waits for."""
        return ()

    def cancel(self) -> None:
        """MPI cannot call back a collective: only the buffer is kept."""

    def settle(self) -> bool:
        try:
            return self.advance()
        except mpi().Exception:
            return True
