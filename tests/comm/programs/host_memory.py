"""For the other programs: what a GPU does with its memory, by the CPU with plain memory."""

from collections.abc import Sequence

import numpy as np

from phalanx.comm import array_kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp


class HostMemory:
    """A device that is the CPU, and does what it is asked for at once."""

    def scratch(self, count: int, dtype: DType) -> Buffer:
        memory = np.zeros(count * dtype.itemsize, np.uint8)
        return Buffer(memory.ctypes.data, count, dtype, memory)

    def copy(self, source: Buffer, dest: Buffer) -> None:
        array_kernels.copy(source, dest)

    def reduce_terms(
        self, terms: Sequence[Buffer], result: Buffer, op: ReduceOp, divisor: float
    ) -> None:
        array_kernels.reduce_terms(terms, result, op, divisor)

    def finish(self) -> None:
        pass
