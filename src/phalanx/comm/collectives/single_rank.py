"""Collectives of a group of one rank: each output becomes its input."""

from __future__ import annotations

from phalanx.comm import kernels
from phalanx.comm.array_kernels import copy
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.dtypes import ReduceOp, check_operation


class SingleRank:
    """The only rank of its group. The same calls as those of `ShmGroup`."""

    rank, size = 0, 1

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return at once."""

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        check_operation(buffer.dtype, op)
        if divisor != 1.0:
            kernels.reduce_terms([buffer], buffer, op, divisor)

    def run(self, collective: Collective, timeout_s: float | None = None) -> None:  # noqa: ARG002
        """Execute any collective."""
        for source, dest in zip(collective.inputs, collective.outputs, strict=True):
            copy(source, dest)
            if collective.divisor != 1.0:
                self.all_reduce(dest, collective.reduction, divisor=collective.divisor)
