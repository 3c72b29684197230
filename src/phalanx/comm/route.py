"""Interface of the routes of collectives: shared memory, messages, device memory, single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp


class CollectiveRoute(Protocol):
    """The calls of `Group`, which documents them; arguments have been checked."""

    def barrier(self, *, timeout_s: float | None = None) -> None: ...

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None: ...

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None: ...

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None: ...

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None: ...

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None: ...

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None: ...

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None: ...

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None: ...
