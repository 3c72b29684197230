"""Collectives of a group of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm import kernels
from phalanx.comm.array_kernels import copy
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp, check_operation


class SingleRank:
    """Collectives of a single rank; `Group` documents the calls. `timeout_s` is ignored."""

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

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,  # noqa: ARG002
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        self.all_reduce(buffer, op, divisor=divisor, timeout_s=timeout_s)

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        """Do nothing: the root has the data."""

    def all_gather(
        self,
        outputs: Sequence[Buffer],
        part: Buffer,
        *,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        copy(part, outputs[0])

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        copy(parts[0], output)
        if divisor != 1.0:
            kernels.reduce_terms([output], output, op, divisor)

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        copy(parts[0], outputs[0])

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,  # noqa: ARG002
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        assert outputs is not None, "this rank is the root"
        copy(part, outputs[0])

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,  # noqa: ARG002
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> None:
        assert parts is not None, "this rank is the root"
        copy(parts[0], output)
