"""Running totals that travel between ranks, in a type that keeps what was added.

Half types are added up in float32, also on their way from rank to rank, so that they are rounded
once; that doubles the bytes of those messages.
"""

from __future__ import annotations

from phalanx.comm.array_kernels import copy
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import FLOAT32, DType, ReduceOp
from phalanx.comm.kernels import narrow, reduce_terms, widen
from phalanx.comm.transport import Transport


def accumulator_dtype(dtype: DType, op: ReduceOp) -> DType:
    """The type of totals of `dtype`: its own, where nothing is lost by that."""
    rounds = dtype.is_half and op in (ReduceOp.SUM, ReduceOp.PRODUCT)
    return FLOAT32 if rounds else dtype


def accumulator_of(transport: Transport, buffer: Buffer, op: ReduceOp) -> Buffer:
    """The values of `buffer` in the type of the totals; `buffer` itself where that is its own."""
    dtype = accumulator_dtype(buffer.dtype, op)
    if dtype == buffer.dtype:
        return buffer
    wide = transport.scratch(buffer.count, dtype)
    load_term(buffer, wide)
    return wide


def load_term(buffer: Buffer, total: Buffer) -> None:
    """total becomes the values of `buffer`, in its own type; the two may be the same memory."""
    if total.dtype != buffer.dtype:
        widen(buffer, total)
    else:
        copy(buffer, total)


def store_result(total: Buffer, result: Buffer, op: ReduceOp, divisor: float) -> None:
    """result becomes total / divisor, in its own type; the two may be the same memory."""
    if total.dtype != result.dtype:
        narrow(total, result, divisor)
    elif divisor != 1.0:
        reduce_terms([total], result, op, divisor)
    else:
        copy(total, result)
