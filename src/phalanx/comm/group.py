"""Groups of ranks: the public interface of collectives and messages."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption, Call, Collective, check_rank, check_tag
from phalanx.comm.dtypes import UINT8, ReduceOp, check_operation
from phalanx.comm.group_base import GroupBase
from phalanx.comm.transport import Transport


class Request(Protocol):
    """A message on its way."""

    source: int | None
    """Rank in the group that it came from; known once done, for receives."""

    def test(self) -> bool:
        """Return whether it is complete; makes progress."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Raises: WaitTimeoutError naming the peer."""


class Group(GroupBase):
    """An ordered set of ranks, over communicators of its own.

    Every member calls the same collectives in the same order, from one thread at a time. All
    calls block until this rank's part is done (its buffers may be used again), except `send` and
    `receive`. Ranks are numbered within the group; `members[rank]` is the rank in the world.

    Reductions are made in a fixed order: the same bits on every rank and in every run. It is that
    of the ranks within a node; `lanes` and `halving`, which serve several nodes and many ranks,
    have one of their own. Half types are summed in float32 and rounded once.

    Every wait ends after `timeout_s` (of the call, else of the group) with a `WaitTimeoutError`:
    "rank 0 waited 300 s in all_reduce number 17 of group world for rank 2". A call that another
    rank matches with another collective, count, dtype, operation or root ends with a
    `MismatchError` that says which rank did what: on every rank when `check` is on; where memory
    is shared always, though some ranks may get it as a `PeerFailedError` with the same text. When
    a member has failed (`fail`), waits end with a `PeerFailedError`.
    """

    def barrier(self, *, name: str = "barrier", timeout_s: float | None = None) -> None:
        """Return when every rank has arrived. name: the name of the call in errors."""
        if self._fast is not None:
            self.sequence += 1
            try:
                self._fast.barrier(timeout_s=timeout_s)
            except BaseException as error:
                self._end(Call(name), timeout_s, error)
                raise
            return
        self._run(Collective("barrier", name=name), timeout_s)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        algorithm: AlgorithmOption | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Reduce `buffer` over all ranks, in place. The result is divided by `divisor` before it
        is rounded to the dtype (integers: towards zero).

        algorithm: the same on every rank; None: as the environment says.
        """
        if self._fast is not None and algorithm is None:
            # Microseconds count here; the kernel checks what is checked below.
            self.sequence += 1
            try:
                self._fast.all_reduce(buffer, op, divisor=divisor, timeout_s=timeout_s)
            except BaseException as error:
                self._end(Call("all_reduce", buffer.dtype), timeout_s, error)
                check_operation(buffer.dtype, op)  # for its error text
                raise
            return
        requested = algorithm or self._requested
        both = (buffer,)
        self._run(Collective("all_reduce", both, both, op, divisor, None, requested), timeout_s)

    def reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        root: int,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """Reduce `buffer` over all ranks into that of `root`; elsewhere it keeps its values."""
        self._run(Collective("reduce", (buffer,), (buffer,), op, divisor, root), timeout_s)

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        """Copy `buffer` of `root` to all ranks."""
        self._run(Collective("broadcast", (buffer,), (buffer,), root=root), timeout_s)

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        """outputs[rank] becomes that rank's `part`; counts may differ between ranks, and every
        rank passes the same list of counts. `part` may be outputs[own rank] itself."""
        self._run(Collective("all_gather", (part,), outputs), timeout_s)

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
        self._run(Collective("reduce_scatter", parts, (output,), op, divisor), timeout_s)

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """outputs[peer] becomes what `peer` has at parts[own rank]; any counts, also 0."""
        self._run(Collective("all_to_all", parts, outputs), timeout_s)

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """outputs: on `root` one buffer a rank, None elsewhere."""
        self._run(Collective("gather", (part,), outputs or (), root=root), timeout_s)

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """parts: on `root` one buffer a rank, None elsewhere."""
        self._run(Collective("scatter", parts or (), (output,), root=root), timeout_s)

    @contextmanager
    def messages(
        self, name: str, num_bytes: int, *, timeout_s: float | None = None
    ) -> Iterator[Transport]:
        """Run a custom collective: every rank exchanges messages in the block, and completes there
        what it has started. It is numbered and ends by timeouts and failures as any other.

        name, num_bytes: of the whole collective, the same on all ranks.
        """
        with self._begin(Call(name, UINT8, (num_bytes,)), timeout_s, "direct"):
            self._transport.begin(timeout_s)
            yield self._transport

    def send(self, buffer: Buffer, *, dest: int, tag: int = 0) -> Request:
        """Begin to send; `buffer` must not change until the request is done."""
        check_rank(dest, self.size, "dest")
        check_tag(tag, self._communicators.max_tag)
        self._check_usable()
        self._expect_messages()
        self._count(Call("send", buffer.dtype, (buffer.count,)))
        request = self._request(tag)
        request.send(buffer, dest)
        return request

    def receive(self, buffer: Buffer, *, source: int | None, tag: int = 0) -> Request:
        """Begin to receive; source None: from any rank."""
        if source is not None:
            check_rank(source, self.size, "source")
        check_tag(tag, self._communicators.max_tag)
        self._check_usable()
        self._expect_messages()
        self._count(Call("receive", buffer.dtype, (buffer.count,)))
        request = self._request(tag)
        request.receive(buffer, source)
        return request

    def share(self, value: Any, *, root: int = 0) -> Any:
        """Broadcast a pickled object from `root`; for set-up only."""
        text = pickle.dumps(value) if self.rank == root else b""
        length = np.array([len(text)])
        self.broadcast(Buffer.of(length), root=root)
        memory = np.zeros(length[0], np.uint8)
        if self.rank == root:
            memory[:] = np.frombuffer(text, np.uint8)
        self.broadcast(Buffer.of(memory), root=root)
        return pickle.loads(memory.tobytes())
