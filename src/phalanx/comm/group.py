"""Ranks that talk to each other: what every collective is called on."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from phalanx.comm.alone import Alone
from phalanx.comm.buffer import Buffer
from phalanx.comm.call import (
    Call,
    check_gathered,
    check_members,
    check_one_each,
    check_rank,
    counts_of,
    given,
    only,
)
from phalanx.comm.check import compare_calls
from phalanx.comm.collectives.dissemination import barrier
from phalanx.comm.communicators import Communicators, communicator_of
from phalanx.comm.counted import counted
from phalanx.comm.device_network import DeviceNetwork, Memory
from phalanx.comm.dtypes import ReduceOp, check_operation
from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError
from phalanx.comm.joining import join_all, join_neighbours
from phalanx.comm.messages import TAGS, MessageRequest, MessageTransport
from phalanx.comm.network import Network
from phalanx.comm.node import Node
from phalanx.comm.select import Asked, asked_for
from phalanx.comm.traffic import Traffic, handed_in
from phalanx.comm.transport import Members
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.watch import Watch

CHECK = "PHALANX_CHECK"  # "1": every collective is compared among the ranks before it is made

# On the communicator for notices, beside the tag of the notices themselves.
CHECK_TAG, FIRST_SUBGROUP_TAG = 1, 2


_SHARED = ("auto", "shared")


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

    Reductions are made in a fixed order: the same bits on every rank and in every run. It is that
    of the ranks within a node; `lanes` and `halving`, which serve several nodes and many ranks,
    have one of their own. Half types are summed in float32 and rounded once.

    Every wait ends after `timeout_s` (of the call, else of the group) with a `WaitTimeoutError`:
    "rank 0 waited 300 s in all_reduce number 17 of group world for rank 2". A call that another
    rank answers with another collective, count, dtype, operation or root ends with a
    `MismatchError` that says which rank did what: on every rank when `check` is on; where memory
    is shared always, though some ranks may hear it from another one, as a `PeerFailedError` with
    its words. When a member has failed (`fail`), waits end with a `PeerFailedError`.
    """

    rank: int
    size: int
    members: tuple[int, ...]
    name: str
    sequence: int
    """How many collectives this rank has begun here."""

    def __init__(
        self,
        communicator: Any,
        *,
        name: str,
        members: tuple[int, ...],
        nodes: tuple[int, ...],
        policy: WaitPolicy,
        timeout_s: float,
        check: bool | None = None,
        traffic: Traffic | None = None,
        parent: Watch | None = None,
    ) -> None:
        """communicator: of the members, in their order; it is not used afterwards. nodes: the
        number of each rank's node. check None: as the environment says. Collective."""
        self.name, self.members, self.nodes = name, members, nodes
        self.policy = policy
        self._check = os.environ.get(CHECK, "0") not in ("", "0") if check is None else check
        self.sequence = 0
        self._communicators = Communicators(communicator, policy, timeout_s, name)
        self.rank: int = self._communicators.collectives.Get_rank()
        self.size: int = self._communicators.collectives.Get_size()
        self._watch = Watch(
            self._communicators.notices,
            group=name,
            members=members,
            policy=policy,
            timeout_s=timeout_s,
            parent=parent,
        )
        self._transport = MessageTransport(self._communicators.collectives, self._watch)
        self._set_up = MessageTransport(self._communicators.notices, self._watch)
        self._asked = asked_for(os.environ)
        self._alone = Alone() if self.size == 1 else None
        self._neighbours = join_neighbours(
            self._communicators.notices, nodes, policy=policy, name=name, timeout_s=timeout_s
        )
        self._network = Network(self._transport, nodes, self._neighbours)
        # The same calls through shared memory, where all members have it.
        self._node = join_all(
            self._communicators.notices, nodes, policy=policy, name=name, timeout_s=timeout_s
        )
        if self._node is not None:
            self._watch.bell = self._node.bell
        self._device: DeviceNetwork | None = None
        self._broken: BaseException | None = None
        self._closed = False
        self._running = _Running(self)
        self.traffic = traffic

    @property
    def timeout_s(self) -> float:
        """Of every wait that is given no timeout of its own."""
        return self._watch.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._watch.timeout_s = timeout_s
        for node in (self._node, self._neighbours):
            if node is not None:
                node.timeout_s = timeout_s

    @property
    def check(self) -> bool:
        """Whether collectives are compared among the ranks before they are made."""
        return self._check

    @check.setter
    def check(self, check: bool) -> None:
        self._check = check
        self._fast = self._fastest()

    @property
    def traffic(self) -> Traffic | None:
        """Where this rank counts what it sends and receives here, and in subgroups made from now
        on; None: nothing is counted, which is faster."""
        return self._traffic

    @traffic.setter
    def traffic(self, traffic: Traffic | None) -> None:
        self._traffic = self._transport.traffic = traffic
        self._network.neighbours = counted(self._neighbours, traffic)
        self._shared = counted(self._node, traffic)
        self._fast = self._fastest()

    @property
    def node(self) -> Node | None:
        """The ranks' shared memory; None where not all ranks have it."""
        return self._node

    def barrier(self, *, name: str = "barrier", timeout_s: float | None = None) -> None:
        """Return when every rank has come. name: what errors call it."""
        if self._fast is not None:
            self.sequence += 1
            try:
                self._fast.barrier(timeout_s=timeout_s)
            except BaseException as error:
                self._end(Call(name), timeout_s, error)
                raise
            return
        with self._begin(Call(name), timeout_s) as route:
            route.barrier(timeout_s=timeout_s)

    def all_reduce(
        self,
        buffer: Buffer,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        algorithm: Asked | None = None,
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
                check_operation(buffer.dtype, op)  # the kernel has no words for it
                raise
            return
        asked = algorithm or self._asked
        check_operation(buffer.dtype, op)
        call = Call("all_reduce", buffer.dtype, (buffer.count,), op, divisor=divisor)
        with self._begin(call, timeout_s):
            if self._device is not None:
                self._device.all_reduce(buffer, op, divisor=divisor, timeout_s=timeout_s)
                return
            if self._shared is not None and asked in _SHARED:
                self._shared.all_reduce(buffer, op, divisor=divisor, timeout_s=timeout_s)
                return
            self._network.all_reduce(
                buffer, op, divisor=divisor, algorithm=asked, timeout_s=timeout_s
            )

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
        check_operation(buffer.dtype, op)
        check_rank(root, self.size, "root")
        call = Call("reduce", buffer.dtype, (buffer.count,), op, root, divisor)
        with self._begin(call, timeout_s) as route:
            route.reduce(buffer, op, root=root, divisor=divisor, timeout_s=timeout_s)

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        """`buffer` of every rank becomes that of `root`."""
        check_rank(root, self.size, "root")
        call = Call("broadcast", buffer.dtype, (buffer.count,), root=root)
        with self._begin(call, timeout_s) as route:
            route.broadcast(buffer, root=root, timeout_s=timeout_s)

    def all_gather(
        self, outputs: Sequence[Buffer], part: Buffer, *, timeout_s: float | None = None
    ) -> None:
        """outputs[rank] becomes that rank's `part`; counts may differ between ranks, and every
        rank passes the same list of counts. `part` may be outputs[own rank] itself."""
        check_gathered(outputs, part, self.rank, self.size)
        call = Call("all_gather", part.dtype, counts_of(outputs))
        with self._begin(call, timeout_s) as route:
            route.all_gather(outputs, part, timeout_s=timeout_s)

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
        check_operation(output.dtype, op)
        check_gathered(parts, output, self.rank, self.size)
        call = Call("reduce_scatter", output.dtype, counts_of(parts), op, divisor=divisor)
        with self._begin(call, timeout_s) as route:
            route.reduce_scatter(output, parts, op, divisor=divisor, timeout_s=timeout_s)

    def all_to_all(
        self,
        outputs: Sequence[Buffer],
        parts: Sequence[Buffer],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """outputs[peer] becomes what `peer` has at parts[own rank]; any counts, also 0."""
        check_one_each(outputs, self.size)
        check_gathered(parts, outputs[self.rank], self.rank, self.size)
        sent, expected = counts_of(parts), counts_of(outputs)
        call = Call("all_to_all", parts[0].dtype, sent=sent, expected=expected)
        with self._begin(call, timeout_s) as route:
            route.all_to_all(outputs, parts, timeout_s=timeout_s)

    def gather(
        self,
        outputs: Sequence[Buffer] | None,
        part: Buffer,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """outputs: on `root` one buffer a rank, None elsewhere."""
        check_rank(root, self.size, "root")
        expected: tuple[int, ...] = ()
        if self.rank == root:
            outputs = given(outputs, "outputs")
            check_gathered(outputs, part, root, self.size)
            expected = counts_of(outputs)
        sent = only(part.count, root, self.size)
        call = Call("gather", part.dtype, root=root, sent=sent, expected=expected)
        with self._begin(call, timeout_s) as route:
            route.gather(outputs, part, root=root, timeout_s=timeout_s)

    def scatter(
        self,
        output: Buffer,
        parts: Sequence[Buffer] | None,
        *,
        root: int,
        timeout_s: float | None = None,
    ) -> None:
        """parts: on `root` one buffer a rank, None elsewhere."""
        check_rank(root, self.size, "root")
        sent: tuple[int, ...] = ()
        if self.rank == root:
            parts = given(parts, "parts")
            check_gathered(parts, output, root, self.size)
            sent = counts_of(parts)
        expected = only(output.count, root, self.size)
        call = Call("scatter", output.dtype, root=root, sent=sent, expected=expected)
        with self._begin(call, timeout_s) as route:
            route.scatter(output, parts, root=root, timeout_s=timeout_s)

    @contextmanager
    def on_device(self, memory: Memory) -> Iterator[None]:
        """Meanwhile the buffers of collectives lie in memory of a device, of which `memory` is in
        charge, and which MPI can read and write. By every member, for the same collectives."""
        self._device, self._fast = DeviceNetwork(self._transport, memory), None
        try:
            yield
        finally:
            self._device = None
            self._fast = self._fastest()

    def send(self, buffer: Buffer, *, dest: int, tag: int = 0) -> Request:
        """Begin to send; `buffer` must not change until the request is done."""
        check_rank(dest, self.size, "dest")
        self._check_usable()
        self._expect_messages()
        self._count(Call("send", buffer.dtype, (buffer.count,)))
        request = MessageRequest(self._watch, self._communicators.messages, tag, self._traffic)
        request.send(buffer, dest)
        return request

    def receive(self, buffer: Buffer, *, source: int | None, tag: int = 0) -> Request:
        """Begin to receive; source None: whoever sends first."""
        if source is not None:
            check_rank(source, self.size, "source")
        self._check_usable()
        self._expect_messages()
        self._count(Call("receive", buffer.dtype, (buffer.count,)))
        request = MessageRequest(self._watch, self._communicators.messages, tag, self._traffic)
        request.receive(buffer, source)
        return request

    def subgroup(self, members: Sequence[int], *, name: str, tag: int = 0) -> Group:
        """A group of some of the ranks of this one, in the order given. Called by its members
        only; members of groups made at the same time need different tags."""
        check_members(members, self.rank, self.size)
        self._check_usable()
        self._watch.activity = f"making the subgroup {name}"
        # First come together with a timeout; what MPI then does has none, but need not wait.
        self._set_up.tag = tag = FIRST_SUBGROUP_TAG + tag % (TAGS - FIRST_SUBGROUP_TAG)
        barrier(Members(self._set_up, members))
        communicator = communicator_of(self._communicators.notices, members, tag)
        group = Group(
            communicator,
            name=name,
            members=tuple(self.members[rank] for rank in members),
            nodes=tuple(self.nodes[rank] for rank in members),
            policy=self.policy,
            timeout_s=self.timeout_s,
            check=self.check,
            traffic=self._traffic,
            parent=self._watch,
        )
        communicator.Free()
        return group

    def share(self, value: Any, *, root: int = 0) -> Any:
        """Every rank gets root's object, pickled: for set-up only."""
        text = pickle.dumps(value) if self.rank == root else b""
        length = np.array([len(text)])
        self.broadcast(Buffer.of(length), root=root)
        memory = np.zeros(length[0], np.uint8)
        if self.rank == root:
            memory[:] = np.frombuffer(text, np.uint8)
        self.broadcast(Buffer.of(memory), root=root)
        return pickle.loads(memory.tobytes())

    def fail(self, reason: str) -> None:
        """Tell the others that this rank cannot go on: their waits end with `PeerFailedError`."""
        self._tell_node(reason)
        self._watch.tell_failure(reason)
        self._broken = self._broken or PeerFailedError(f"this rank, {self.rank}, failed: {reason}")
        self._fast = None

    def close(self) -> None:
        """Give back communicators and memory. By every member; who does not come within a second
        is not waited for."""
        if self._closed:
            return
        self._closed = True
        self._fast = self._node = self._shared = self._neighbours = None
        self._watch.close()
        if self._broken is None:
            self._communicators.close()
        # Else they stay: messages may still come, and would reach whoever got their numbers next.

    def _begin(self, call: Call, timeout_s: float | None) -> _Running:
        """Number the collective and, in debug mode, compare it with what the others call."""
        self._check_usable()
        self.sequence += 1
        self._transport.tag = self.sequence
        self._watch.activity = f"{call.name} number {self.sequence}"
        self._running.timeout_s = timeout_s
        self._count(call)
        if self.check and self.size > 1:
            if self._device is not None:
                call = call._replace(name=f"{call.name} of device memory")
            with self._running:
                self._set_up.tag, self._set_up.timeout_s = CHECK_TAG, timeout_s
                compare_calls(self._set_up, call, self._watch.text_of)
        return self._running

    def _fastest(self) -> Node | Alone | None:
        usable = self._broken is None and not self._closed and self._traffic is None
        if self._alone is not None and usable:
            return self._alone
        return self._node if usable and not self._check and self._asked in _SHARED else None

    def _count(self, call: Call) -> None:
        if self._traffic is not None and call.dtype is not None:
            self._traffic.begin(call.name, handed_in(call, self.rank))

    def _expect_messages(self) -> None:
        if self._node is not None:
            self._node.keep_messages_moving()

    def _end(self, call: Call, timeout_s: float | None, error: BaseException) -> None:
        """The fast way has failed: do what a context of `_begin` does then."""
        self._watch.activity = f"{call.name} number {self.sequence}"
        self._running.timeout_s = timeout_s
        if isinstance(error, TypeError):
            self.sequence -= 1  # not begun
        else:
            self._running.__exit__(type(error), error, None)

    def _break(self, error: BaseException) -> None:
        """The group cannot go on after this; those who wait in shared memory are told."""
        self._broken, self._fast = error, None
        if not isinstance(error, PeerFailedError):
            self._tell_node(str(error) or type(error).__name__)

    def _tell_node(self, reason: str) -> None:
        for node in (self._node, self._neighbours):
            if node is not None:
                node.fail(reason)

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(f"group {self.name} is closed")
        if self._broken is not None:
            raise PeerFailedError(f"group {self.name} cannot be used any more: {self._broken}")


class _Running:
    """One collective at a time: gives the way it goes, and breaks the group when it fails."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.timeout_s: float | None = None

    def __enter__(self) -> Any:
        group = self._group
        return group._device or group._alone or group._shared or group._network

    def __exit__(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        __: TracebackType | None,
    ) -> None:
        if error is not None:
            self._name_collective(error)
            self._group._break(error)

    def _name_collective(self, error: BaseException) -> None:
        """Errors of a part that does not know the group: say where they happened."""
        group = self._group
        if isinstance(error, MismatchError):
            error.args = (f"collective number {group.sequence} of group {group.name}: {error}",)
        elif isinstance(error, WaitTimeoutError) and " waited " not in str(error):
            timeout_s = group.timeout_s if self.timeout_s is None else self.timeout_s
            error.args = (
                f"rank {group.rank} waited {timeout_s:g} s in {group._watch.activity} "
                f"of group {group.name} for {error}",
            )
