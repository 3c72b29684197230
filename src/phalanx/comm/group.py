"""Ranks that talk to each other: what every collective is called on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp


class Request(Protocol):
    """A message on its way."""

    source: int | None
    """Rank in the group that it came from; known once done, for receives."""

    def test(self) -> bool:
        """Whether it is done; moves it on."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Raises: WaitTimeoutError naming the peer."""


class Group:
    """An ordered set of ranks, over communicators of its own.

    Every member calls the same collectives in the same order, from one thread at a time. All
    calls block until this rank's part is done (its buffers may be used again), except `send` and
    `receive`. Ranks are numbered within the group; `members[rank]` is the rank in the world.

    Reductions are made in the order of the ranks: the same bits on every rank and in every run.
    Half types are summed in float32 and rounded once.

    Every wait ends after `timeout_s` (of the call, else of the group) with a `WaitTimeoutError`:
    "rank 0 waited 300 s in all_reduce number 17 of group world for rank 2". A call that another
    rank answers with another collective, count, dtype, operation or root ends with a
    `MismatchError` that says which rank did what: always where memory is shared, elsewhere when
    `check` is on. When a member has failed (`fail`), waits end with a `PeerFailedError`.
    """

    rank: int
    size: int
    members: tuple[int, ...]
    name: str
    timeout_s: float
    check: bool
    sequence: int
    """How many collectives this rank has begun here."""

    def barrier(self, *, timeout_s: float | None = None) -> None: ...

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """Reduce `buffer` over all ranks, in place. The result is divided by `divisor` before it
        is rounded to the dtype (integers: towards zero)."""

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """The same, for `root` alone; elsewhere `buffer` keeps its values."""

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None: ...

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        """outputs[rank] becomes that rank's `part`; counts may differ between ranks, and every
        rank passes the same list of counts. `part` may be outputs[own rank] itself."""

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer],
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """`output` becomes the reduction of what all ranks have at parts[own rank]. `parts` are
        not changed, unless `output` is one of them; counts may differ between parts."""

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """outputs[peer] becomes what `peer` has at parts[own rank]; any counts, also 0."""

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """outputs: on `root` one buffer a rank, None elsewhere."""

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """parts: on `root` one buffer a rank, None elsewhere."""

    def send(self, buffer: Buffer, *, dest: int, tag: int = 0) -> Request:
        """Begin to send; `buffer` must not change until the request is done."""
        raise NotImplementedError

    def receive(self, buffer: Buffer, *, source: int | None, tag: int = 0) -> Request:
        """Begin to receive; source None: whoever sends first."""
        raise NotImplementedError

    def subgroup(self, members: Sequence[int], *, name: str, tag: int = 0) -> Group:
        """A group of some of the ranks of this one, in the order given. Called by its members
        only; members of groups made at the same time need different tags."""
        raise NotImplementedError

    def share(self, value: Any, *, root: int = 0) -> Any:
        """Every rank gets root's object, pickled: for set-up only."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Tell the others that this rank cannot go on: their waits end with `PeerFailedError`."""

    def close(self) -> None:
        """Give back communicators and memory. By every member; does not wait for the others
        longer than freeing a communicator takes."""
