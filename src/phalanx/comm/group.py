"""Groups of ranks: the public interface of collectives and messages."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.call_monitor import CallMonitor
from phalanx.comm.collective import (
    AlgorithmOption,
    Call,
    Collective,
    Kind,
    check_collective,
    check_members,
    check_rank,
    check_tag,
)
from phalanx.comm.collectives import library, over_messages
from phalanx.comm.collectives.single_rank import SingleRank
from phalanx.comm.connections import Connections
from phalanx.comm.device_transport import DeviceOps, DeviceTransport
from phalanx.comm.dtypes import UINT8, ReduceOp, check_operation, dtype_of
from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError, encodable
from phalanx.comm.faults import left_error
from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.message_request import MessageRequest
from phalanx.comm.select import (
    SHARED,
    Route,
    Topology,
    choose_route,
    keeps_order_in_parts,
    requested_algorithm,
)
from phalanx.comm.settings import CHECK
from phalanx.comm.shm import PlainTensors, ShmGroup
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.transport import Transport
from phalanx.comm.wait import WaitPolicy
from phalanx.records.last_collectives import GroupCalls
from phalanx.records.spans import SpanRecorder

Buffers = Sequence[Buffer]
T = TypeVar("T")


class _Monitored(Generic[T]):
    """Attribute of a group's monitor; the direct route of calls depends on it."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, group: Group, _: type) -> T:
        value: T = getattr(group._monitor, self._name)
        return value

    def __set__(self, group: Group, value: T) -> None:
        setattr(group._monitor, self._name, value)
        group._fast = group._fastest()


class Group:
    """An ordered set of ranks, over communicators of its own.

    Every member calls the same collectives in the same order, from one thread at a time. All
    calls block until this rank's part is done (its buffers may be used again), except `send` and
    `receive`. Ranks are numbered within the group; `members[rank]` is the rank in the world.

    Reductions are made in a fixed order: the same bits on every rank and in every run. It is that
    of the ranks within a node; `lanes`, `halving` and `tree`, which serve several nodes and many
    ranks, have one of their own. Half types are summed in float32 and rounded once.

    Every wait ends after `timeout_s` (of the call, else of the group) with a `WaitTimeoutError`:
    "rank 0 waited 300 s in all_reduce number 17 of group world for rank 2". A call that another
    rank matches with another collective, count, dtype, operation or root ends with a
    `MismatchError` that says which rank did what: on every rank when `check` is on; where memory
    is shared always, though some ranks may get it as a `PeerFailedError` with the same text. When
    a member has failed (`fail`), waits end with a `PeerFailedError`.
    """

    check = _Monitored[bool]()
    """If set, the ranks compare their calls before every collective."""
    traffic = _Monitored[TrafficCounter | None]()
    """Counter of what this rank sends and receives here, and in subgroups made from now on;
    None: nothing is counted, which is faster."""
    spans = _Monitored[SpanRecorder | None]()
    """Recorder to which every collective of this group adds its span; None: none, which is
    faster."""

    def __init__(
        self,
        connections: Connections,
        *,
        check: bool | None = None,
        requested: AlgorithmOption | None = None,
        traffic: TrafficCounter | None = None,
        recorder: FlightRecorder | None = None,
    ) -> None:
        """connections: to the members, used and closed by this group alone. check, requested: the
        same on every rank, such as a world's settings; None: as the environment says."""
        self._peers = peers = connections
        self.name, self.members, self.nodes = peers.name, peers.members, peers.nodes
        self.rank, self.size = peers.rank, peers.size
        self.labels = peers.labels
        """Names of the members in errors."""
        self.sequence = 0
        """Number of collectives that this rank has begun."""
        self._requested = requested or requested_algorithm(os.environ)
        self.broken: BaseException | None = None
        """The error that broke the group; None while it is usable."""
        self._closed = False
        self._monitor = CallMonitor(
            peers,
            check=os.environ.get(CHECK, "0") not in ("", "0") if check is None else check,
            on_failure=self._break,
        )
        self._direct = SingleRank() if peers.size == 1 else peers.shm
        """Executor of what needs no messages; None where ranks do not share memory."""
        self._device: DeviceTransport | None = None
        self.topology = Topology(
            nodes=peers.nodes,
            shares_memory=peers.shm is not None,
            is_emulated=peers.link_emulator is not None,
        )
        """The facts by which routes are chosen."""
        self.traffic = traffic
        self._recorder = recorder or FlightRecorder(self.members[self.rank])
        self._recorder.register(self)

    @property
    def timeout_s(self) -> float:
        """Timeout of waits without an explicit one."""
        return self._peers.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._peers.timeout_s = timeout_s

    @property
    def shm(self) -> ShmGroup | None:
        """The shared-memory group of all ranks; None where they do not share memory."""
        return self._peers.shm

    def keeps_order_in_parts(self, kind: Kind) -> bool:
        """Return whether a long vector may be reduced or broadcast in parts, with the same sums.
        The same on every rank."""
        return keeps_order_in_parts(self.topology, kind, self._requested)

    def barrier(self, *, name: str = "barrier", timeout_s: float | None = None) -> None:
        """Return when every rank has arrived. name: the name of the call in errors."""
        if self._fast is not None:
            self.sequence += 1
            try:
                self._fast.barrier(timeout_s=timeout_s)
            except BaseException as error:
                self._monitor.end_direct(self.sequence, Call(name), timeout_s, error)
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
            except TypeError:
                self.sequence -= 1  # not begun
                check_operation(buffer.dtype, op)  # raises with its error text
                raise
            except BaseException as error:
                call = Call("all_reduce", buffer.dtype)
                self._monitor.end_direct(self.sequence, call, timeout_s, error)
                raise
            return
        requested = algorithm or self._requested
        both = (buffer,)
        self._run(Collective("all_reduce", both, both, op, divisor, None, requested), timeout_s)

    def all_reduce_tensor(
        self,
        tensor: Any,
        plain: PlainTensors,
        op: ReduceOp,
        divisor: float,
        timeout_s: float | None,
    ) -> bool:
        """Reduce a tensor of PyTorch over all ranks, as `all_reduce` its buffer, with less work
        before it; False, and nothing was done, if it is not plain or ranks do not share memory."""
        fast = self._fast
        if fast is None or fast is not self._peers.shm:
            return False
        self.sequence += 1
        try:
            is_done = fast.all_reduce_tensor(tensor, plain, op, divisor, timeout_s)
        except TypeError:
            self.sequence -= 1  # not begun
            raise
        except BaseException as error:
            call = Call("all_reduce", dtype_of(tensor.dtype))
            self._monitor.end_direct(self.sequence, call, timeout_s, error)
            raise
        self.sequence -= not is_done
        return is_done

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
        both = (buffer,)
        self._run(Collective("reduce", both, both, op, divisor, root), timeout_s)

    def broadcast(self, buffer: Buffer, *, root: int, timeout_s: float | None = None) -> None:
        """Copy `buffer` of `root` to all ranks."""
        both = (buffer,)
        self._run(Collective("broadcast", both, both, None, 1.0, root), timeout_s)

    def all_gather(self, outputs: Buffers, part: Buffer, *, timeout_s: float | None = None) -> None:
        """outputs[rank] becomes that rank's `part`; counts may differ between ranks, and every
        rank passes the same list of counts. `part` may be outputs[own rank] itself."""
        self._run(Collective("all_gather", (part,), outputs), timeout_s)

    def reduce_scatter(
        self,
        output: Buffer,
        parts: Buffers,
        op: ReduceOp = ReduceOp.SUM,
        *,
        divisor: float = 1.0,
        timeout_s: float | None = None,
    ) -> None:
        """`output` becomes the reduction of what all ranks have at parts[own rank]. `parts` are
        not changed, unless `output` is one of them; counts may differ between parts."""
        self._run(Collective("reduce_scatter", parts, (output,), op, divisor), timeout_s)

    def all_to_all(
        self, outputs: Buffers, parts: Buffers, *, timeout_s: float | None = None
    ) -> None:
        """outputs[peer] becomes what `peer` has at parts[own rank]; any counts, also 0."""
        self._run(Collective("all_to_all", parts, outputs), timeout_s)

    def gather(
        self, outputs: Buffers | None, part: Buffer, *, root: int, timeout_s: float | None = None
    ) -> None:
        """outputs: on `root` one buffer a rank, None elsewhere."""
        self._run(Collective("gather", (part,), outputs or (), root=root), timeout_s)

    def scatter(
        self, output: Buffer, parts: Buffers | None, *, root: int, timeout_s: float | None = None
    ) -> None:
        """parts: on `root` one buffer a rank, None elsewhere."""
        self._run(Collective("scatter", parts or (), (output,), root=root), timeout_s)

    def run(self, collective: Collective, timeout_s: float | None = None) -> None:
        """Execute a collective that is given as a value."""
        if collective.kind == "all_reduce" and collective.algorithm == "auto":
            buffer, op = collective.outputs[0], collective.reduction
            self.all_reduce(buffer, op, divisor=collective.divisor, timeout_s=timeout_s)
        else:
            self._run(collective, timeout_s)

    @contextmanager
    def messages(
        self, name: str, num_bytes: int, *, timeout_s: float | None = None
    ) -> Iterator[Transport]:
        """Run a custom collective: every rank exchanges messages in the block, and completes there
        what it has started. It is numbered and ends by timeouts and failures as any other.

        name, num_bytes: of the whole collective, the same on all ranks.
        """
        self._check_usable()
        self.sequence += 1
        call = Call(name, UINT8, (num_bytes,))
        transport = self._peers.transport
        with self._monitor.begin(self.sequence, call, timeout_s, "direct"):
            transport.begin(timeout_s)
            yield transport

    def send(self, buffer: Buffer, *, dest: int, tag: int = 0) -> MessageRequest:
        """Begin to send; `buffer` must not change until the request is done."""
        check_rank(dest, self.size, "dest")
        request = self._request("send", buffer, tag)
        request.send(buffer, dest)
        return request

    def receive(self, buffer: Buffer, *, source: int | None, tag: int = 0) -> MessageRequest:
        """Begin to receive; source None: from any rank."""
        if source is not None:
            check_rank(source, self.size, "source")
        request = self._request("receive", buffer, tag)
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

    def compare(self, value: T) -> list[T]:
        """Return the pickled objects of all ranks; for set-up only, not numbered. Collective."""
        values: list[T] = self._peers.set_up.allgather(value)
        return values

    def gather_objects(self, value: T) -> Iterable[T]:
        """Return the pickled objects of all ranks on rank 0, each received when it is asked for;
        elsewhere send `value`, and return nothing. Collective; two messages of each rank."""
        if self.rank == 0:
            return chain([value], map(self._receive_object, range(1, self.size)))
        text = np.frombuffer(pickle.dumps(value), np.uint8).copy()
        for array in (np.array([len(text)]), text):
            self.send(Buffer.of(array), dest=0).wait()
        return []

    def _receive_object(self, source: int) -> Any:
        length = np.zeros(1, np.int64)
        self.receive(Buffer.of(length), source=source).wait()
        text = np.empty(length[0], np.uint8)
        self.receive(Buffer.of(text), source=source).wait()
        return pickle.loads(text.tobytes())

    @contextmanager
    def on_device(self, memory: DeviceOps) -> Iterator[None]:
        """Meanwhile the buffers of collectives lie in memory of a device, of which `memory` is in
        charge, and which MPI can read and write. By every member, for the same collectives."""
        on_host, self._fast = self.topology, None
        self._device = DeviceTransport(self._peers.transport, memory)
        self.topology = replace(on_host, on_device=True)
        try:
            yield
        finally:
            self._device, self.topology = None, on_host
            self._fast = self._fastest()

    def subgroup(
        self, members: Sequence[int], *, name: str, tag: int = 0, policy: WaitPolicy | None = None
    ) -> Group:
        """A group of some of the ranks of this one, in the order given. Called by its members
        only; members of groups made at the same time need different tags.

        policy: how its ranks wait; None: as those of this group.
        """
        check_members(members, self.rank, self.size)
        self._check_usable()
        return Group(
            self._peers.subset(members, name=name, tag=tag, policy=policy),
            check=self.check,
            requested=self._requested,
            traffic=self.traffic,
            recorder=self._recorder,
        )

    def make_communicator(self, members: Sequence[int], *, name: str) -> Any:
        """Return a communicator of some of the ranks, in the order given; called by these only."""
        self._check_usable()
        return self._peers.make_communicator(members, name=name)

    def set_wait_policy(self, policy: WaitPolicy) -> None:
        """Set the wait policy of this rank from now on. Any thread may call it at any time."""
        self._peers.detector.policy = policy

    def check_peers(self) -> None:
        """Raises: PeerFailedError when a member has reported a failure."""
        self._check_usable()
        self._peers.check_peers()

    def last_calls(self) -> GroupCalls:
        """Return the last collectives of this rank; none in a group of one."""
        return self._monitor.last_calls(self.sequence)

    def call_state(self) -> tuple[int, bool]:
        """Return a number that grows with each call of this rank, and whether it is in one in
        shared memory now. Called from any thread."""
        number, is_in_call = self._peers.call_state()
        return self.sequence + number, is_in_call

    def fail(self, reason: str) -> None:
        """Report to the peers that this rank has failed: their waits end with `PeerFailedError`,
        and so do those of this rank's other threads."""
        reason = encodable(reason)
        self._peers.report_failure(reason)
        self._recorder.write(reason)
        self.broken = self.broken or PeerFailedError(
            f"this rank, {self.labels.short(self.rank)}, failed: {reason}"
        )
        self._fast = None

    def abandon(self) -> None:
        """Use the group no more, as this rank leaves it after the death of a member; its world
        has revoked the communicators. Members that wait in shared memory leave it as well."""
        self.broken, self._fast = self.broken or left_error(), None
        self._peers.leave_shm("it has noticed a failure, and has left the group to recover")

    def close(self) -> None:
        """Free communicators and memory. Called by every member; waits for them up to a second."""
        if not self._closed:
            self._closed, self._fast = True, None
            self._peers.close(is_broken=self.broken is not None)

    def _run(self, collective: Collective, timeout_s: float | None) -> None:
        """Check the arguments of a collective, number it, and execute it by its route."""
        call = check_collective(collective, self.rank, self.size)
        native = collective.algorithm == "library" and library.is_native(collective.dtype)
        route = choose_route(self.topology, collective, is_native=native)
        self._check_usable()
        self.sequence += 1
        if route == "single" and self.traffic is None and self.spans is None:
            self._execute(collective, route, timeout_s)
            return
        with self._monitor.begin(self.sequence, call, timeout_s, route, collective.algorithm):
            self._execute(collective, route, timeout_s)

    def _execute(self, collective: Collective, route: Route, timeout_s: float | None) -> None:
        """Execute a collective by its route; its waits end after `timeout_s`."""
        peers = self._peers
        if route in ("single", "shared"):
            assert self._direct is not None, "the ranks share memory"
            self._monitor.run_in_memory(self._direct, collective, timeout_s)
            return
        peers.transport.begin(timeout_s)
        if route == "library":
            library.run(peers.transport, collective)
            self._monitor.count_of_library(collective)
            return
        shm = peers.intra_node
        over_messages.run(
            self._device or peers.transport,
            collective,
            route,
            nodes=peers.nodes,
            run_on_node=partial(self._run_on_node, shm, timeout_s) if shm else None,
        )
        if self._device is not None:
            self._device.finish()

    def _run_on_node(
        self, ranks: ShmGroup, timeout_s: float | None, collective: Collective
    ) -> None:
        """Execute a part of a collective of several nodes; those on other nodes may ask meanwhile,
        and a timeout names all ranks that are missing."""
        detector = self._peers.detector
        detector.is_in_memory = True
        try:
            self._monitor.run_in_memory(ranks, collective, timeout_s)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(detector.missing_ranks()) from error
        finally:
            detector.is_in_memory = False

    def _request(self, name: str, buffer: Buffer, tag: int) -> MessageRequest:
        check_tag(tag, self._peers.max_tag)
        self._check_usable()
        self._monitor.count(Call(name, buffer.dtype, (buffer.count,)))
        return self._peers.request(tag, self.spans)

    def _fastest(self) -> ShmGroup | SingleRank | None:
        usable = self.broken is None and not self._closed
        is_watched = self.check or self.traffic is not None or self.spans is not None
        direct = usable and not is_watched and self._requested in SHARED
        return self._direct if direct else None

    def _break(self, error: BaseException) -> None:
        """Mark the group unusable, and report it to ranks that wait in shared memory."""
        self.broken, self._fast = error, None
        reason = encodable(str(error)) or type(error).__name__
        if not isinstance(error, PeerFailedError):
            self._peers.fail_shm(reason)
        path = self._recorder.write(reason)
        if path is not None and isinstance(
            error, (WaitTimeoutError, PeerFailedError, MismatchError)
        ):
            error.args = (f"{reason} (its last collectives: {path})",)

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(f"group {self.name} is closed")
        if self.broken is not None:
            raise PeerFailedError(f"group {self.name} can no longer be used: {self.broken}")
