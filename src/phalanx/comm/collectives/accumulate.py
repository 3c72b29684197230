"""Running totals that travel between ranks, in a type that keeps what was added."""

from __future__ import annotations

from phalanx.comm.array_kernels import copy, narrow, widen
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import FLOAT32, ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import scratch


class Accumulated:
    """`total` starts with the values of a buffer and takes in those of other ranks.

    Half types are added up in float32, also on their way from rank to rank, so that they are
    rounded once; that doubles the bytes of the messages. Other totals are the buffer itself, or a
    copy where the buffer must keep its values.
    """

    def __init__(self, buffer: Buffer, op: ReduceOp, *, keep: bool = False) -> None:
        self._result = buffer
        self._op = op
        self.total = buffer
        if buffer.dtype.is_half and op in (ReduceOp.SUM, ReduceOp.PRODUCT):
            self.total = scratch(buffer.count, FLOAT32)
            widen(buffer, self.total)
        elif keep:
            self.total = scratch(buffer.count, buffer.dtype)
            copy(buffer, self.total)

    def finish(self, part: slice, divisor: float) -> None:
        """The buffer's elements `part` become the total divided by `divisor`."""
        total = self.total.part(part.start, part.stop)
        result = self._result.part(part.start, part.stop)
        if self.total.dtype != self._result.dtype:
            narrow(total, result, divisor)
        elif divisor != 1.0 or self.total is not self._result:
            reduce_terms([total], result, self._op, divisor)
