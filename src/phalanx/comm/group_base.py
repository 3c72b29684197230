"""State of a group on one rank: set-up, routes of its collectives, failure and close."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self

from phalanx.comm.check import compare_calls
from phalanx.comm.collective import (
    AlgorithmOption,
    Call,
    Collective,
    check_collective,
    check_members,
)
from phalanx.comm.collective_call import CollectiveCall
from phalanx.comm.collectives import library, over_messages, single_rank
from phalanx.comm.collectives.dissemination import barrier
from phalanx.comm.communicators import (
    FIRST_COLLECTIVE_TAG,
    TAGS,
    Communicators,
    OpenCommunicators,
    create_subcommunicator,
    tag_limit,
)
from phalanx.comm.device_transport import DeviceOps, DeviceTransport
from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.flight_recorder import EMPTY_LOG, CallLog, FlightRecorder
from phalanx.comm.link_emulator import LinkEmulator
from phalanx.comm.messages import MessageRequest, MessageTransport
from phalanx.comm.select import Route, Topology, choose_route, requested_algorithm
from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.settings import CHECK
from phalanx.comm.shm import ShmGroup
from phalanx.comm.shm_setup import join_all, join_intra_node
from phalanx.comm.traffic import TrafficCounter, payload_bytes, scheme_traffic
from phalanx.comm.transport import SubTransport
from phalanx.comm.wait import WaitPolicy
from phalanx.records.last_collectives import GroupCalls
from phalanx.records.spans import SpanRecorder

# On the communicator for notices, beside the tag of the notices themselves.
CHECK_TAG, FIRST_SUBGROUP_TAG = 1, 2

FAILURES = (WaitTimeoutError, PeerFailedError, MismatchError)
SHARED = ("auto", "shared")  # what one asks for to get shared memory, where there is some


class GroupBase:
    """State of a group on one rank; `Group` adds the collectives."""

    rank: int
    size: int
    members: tuple[int, ...]
    name: str
    sequence: int
    """Number of collectives that this rank has begun."""

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
        requested: AlgorithmOption | None = None,
        traffic: TrafficCounter | None = None,
        parent: FailureDetector | None = None,
        link_emulator: LinkEmulator | None = None,
        recorder: FlightRecorder | None = None,
        still_open: OpenCommunicators | None = None,
    ) -> None:
        """communicator: of the members, in their order; it is not used afterwards. nodes: the
        number of each rank's node. check, requested: the same on every rank, such as a world's
        settings; None: as the environment says. link_emulator: the emulated link by which messages
        leave; set-up and the comparison of calls do not. Collective."""
        self.name, self.members, self.nodes = name, members, nodes
        self.policy = policy
        self._check = os.environ.get(CHECK, "0") not in ("", "0") if check is None else check
        self.sequence = 0
        joining = FailureDetector(
            communicator,
            group=name,
            members=members,
            policy=policy,
            timeout_s=timeout_s,
            parent=parent,
            tag=tag_limit(communicator),
        )
        self._communicators = Communicators(communicator, joining, still_open)
        joining.close()
        own = self._communicators.own
        self.rank: int = own.Get_rank()
        self.size: int = own.Get_size()
        self._detector = FailureDetector(
            own,
            group=name,
            members=members,
            policy=policy,
            timeout_s=timeout_s,
            parent=parent,
        )
        self._link_emulator = link_emulator
        self._transport = MessageTransport(
            own, self._detector, link_emulator, first_tag=FIRST_COLLECTIVE_TAG
        )
        self._set_up = MessageTransport(own, self._detector)
        self._in_flight = self._transport.in_flight = self._set_up.in_flight
        self._requested = requested or requested_algorithm(os.environ)
        set_up = SetupCommunicator(own, self._detector)
        self._intra_node = join_intra_node(
            set_up, nodes, members, policy=policy, name=name, timeout_s=timeout_s
        )
        # The same calls through shared memory, where all members have it.
        self._shm = join_all(set_up, nodes, policy=policy, name=name, timeout_s=timeout_s)
        if self._shm is not None:
            self._detector.bell = self._shm.bell
        self._detector.is_dead = self._is_dead
        self._device: DeviceTransport | None = None
        self._topology = Topology(
            nodes=nodes,
            shares_memory=self._shm is not None,
            is_emulated=link_emulator is not None,
        )
        self._broken: BaseException | None = None
        self._closed = False
        self._call_context = CollectiveCall(self)
        self._call_log = CallLog()
        self._spans: SpanRecorder | None = None
        self.traffic = traffic
        self._recorder = recorder or FlightRecorder(members[self.rank])
        self._recorder.register(self)

    @property
    def timeout_s(self) -> float:
        """Timeout of every wait that is given none of its own."""
        return self._detector.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._detector.timeout_s = timeout_s
        for shm in (self._shm, self._intra_node):
            if shm is not None:
                shm.timeout_s = timeout_s

    @property
    def check(self) -> bool:
        """If set, the ranks compare their calls before every collective."""
        return self._check

    @check.setter
    def check(self, check: bool) -> None:
        self._check = check
        self._fast = self._fastest()

    @property
    def traffic(self) -> TrafficCounter | None:
        """Where this rank counts what it sends and receives here, and in subgroups made from now
        on; None: nothing is counted, which is faster."""
        return self._traffic

    @traffic.setter
    def traffic(self, traffic: TrafficCounter | None) -> None:
        self._traffic = self._transport.traffic = traffic
        self._fast = self._fastest()

    @property
    def spans(self) -> SpanRecorder | None:
        """Where every collective of this group adds its span; None: nowhere, which is faster."""
        return self._spans

    @spans.setter
    def spans(self, spans: SpanRecorder | None) -> None:
        self._spans = spans
        self._fast = self._fastest()

    @property
    def broken(self) -> BaseException | None:
        """The error that broke the group; None while it is usable."""
        return self._broken

    def check_peers(self) -> None:
        """Raises: PeerFailedError when a member has reported a failure."""
        self._check_usable()
        if self._shm is not None:
            self._shm.check_peers()
        self._detector.read_notices()

    def last_calls(self) -> GroupCalls:
        """Return the last collectives of this rank; none in a group of one."""
        kernels = EMPTY_LOG if self._shm is None else self._shm.logged_calls()
        calls = self._call_log.merged(self.sequence, kernels) if self.size > 1 else []
        return GroupCalls(group=self.name, members=list(self.members), calls=calls)

    @property
    def shm(self) -> ShmGroup | None:
        """The shared-memory group of all ranks; None where they do not share memory."""
        return self._shm

    @contextmanager
    def on_device(self, memory: DeviceOps) -> Iterator[None]:
        """Meanwhile the buffers of collectives lie in memory of a device, of which `memory` is in
        charge, and which MPI can read and write. By every member, for the same collectives."""
        on_host = self._topology
        self._device, self._fast = DeviceTransport(self._transport, memory), None
        self._topology = replace(on_host, on_device=True)
        try:
            yield
        finally:
            self._device, self._topology = None, on_host
            self._fast = self._fastest()

    def subgroup(
        self,
        members: Sequence[int],
        *,
        name: str,
        tag: int = 0,
        policy: WaitPolicy | None = None,
    ) -> Self:
        """A group of some of the ranks of this one, in the order given. Called by its members
        only; members of groups made at the same time need different tags.

        policy: how its ranks wait; None: as those of this group.
        """
        check_members(members, self.rank, self.size)
        self._check_usable()
        self._detector.activity = f"making the subgroup {name}"
        # First synchronize, with a timeout; what MPI then does has none, but need not wait.
        self._set_up.tag = tag = FIRST_SUBGROUP_TAG + tag % (TAGS - FIRST_SUBGROUP_TAG)
        barrier(SubTransport(self._set_up, members))
        communicator = create_subcommunicator(self._communicators.own, members, tag)
        group = type(self)(
            communicator,
            name=name,
            members=tuple(self.members[rank] for rank in members),
            nodes=tuple(self.nodes[rank] for rank in members),
            policy=policy or self.policy,
            timeout_s=self.timeout_s,
            check=self.check,
            requested=self._requested,
            traffic=self._traffic,
            parent=self._detector,
            link_emulator=self._link_emulator,
            recorder=self._recorder,
            still_open=self._communicators.still_open,
        )
        communicator.Free()
        return group

    def set_wait_policy(self, policy: WaitPolicy) -> None:
        """Set the wait policy of this rank from now on. Any thread may call it at any time."""
        self._detector.policy = policy

    def fail(self, reason: str) -> None:
        """Report to the peers that this rank has failed: their waits end with `PeerFailedError`,
        and so do those of this rank's other threads."""
        reason = encodable(reason)
        self._detector.failed[self.members[self.rank]] = reason
        self._fail_shm(reason)
        self._detector.report_failure(reason)
        self._recorder.write(reason)
        self._broken = self._broken or PeerFailedError(f"this rank, {self.rank}, failed: {reason}")
        self._fast = None

    def close(self) -> None:
        """Free communicators and memory. Called by every member; waits for them up to a second."""
        if self._closed:
            return
        self._closed = True
        self._fast = self._shm = self._intra_node = None
        self._detector.close()
        closed = PeerFailedError(f"group {self.name} was closed before the message had come")
        self._in_flight.close(closed)
        if self._broken is None:
            if self._link_emulator is not None:
                self._link_emulator.flush()
            self._communicators.close()
        # Else they stay: messages may still come, and would reach whoever got their numbers next.

    def _run(self, collective: Collective, timeout_s: float | None) -> None:
        """Check the arguments of a collective, choose its route and execute it there."""
        call = check_collective(collective, self.rank, self.size)
        if self.size == 1 and self._device is None and self._is_unwatched():
            self.sequence += 1
            single_rank.run(collective)
            return
        native = collective.algorithm == "library" and library.is_native(collective.dtype)
        route = choose_route(self._topology, collective, is_native=native)
        with self._begin(call, timeout_s, route, collective.algorithm):
            self._execute(collective, route, timeout_s)

    def _execute(self, collective: Collective, route: Route, timeout_s: float | None) -> None:
        if route == "single":
            single_rank.run(collective)
        elif route == "shared":
            self._run_in_memory(self._shm, timeout_s, collective)
        elif route == "library":
            self._transport.begin(timeout_s)
            library.run(self._transport, collective)
            self._count_scheme(collective, self.rank, self.size)  # MPI does not say what it sent
        else:
            self._transport.begin(timeout_s)
            shm = self._intra_node
            over_messages.run(
                self._device or self._transport,
                collective,
                route,
                nodes=self.nodes,
                run_on_node=partial(self._run_in_memory, shm, timeout_s) if shm else None,
            )
            if self._device is not None:
                self._device.finish()

    def _run_in_memory(
        self, shm: ShmGroup | None, timeout_s: float | None, collective: Collective
    ) -> None:
        assert shm is not None, "the ranks share memory"
        shm.run(collective, timeout_s)
        self._count_scheme(collective, shm.rank, shm.size)

    def _count_scheme(self, collective: Collective, rank: int, size: int) -> None:
        if self._traffic is not None:
            self._traffic.add(scheme_traffic(collective, rank, size))

    def _begin(
        self, call: Call, timeout_s: float | None, route: Route, requested: AlgorithmOption = "auto"
    ) -> CollectiveCall:
        """Number the collective, log it and, in debug mode, compare it with those of the peers."""
        self._check_usable()
        self.sequence += 1
        self._transport.tag = self.sequence
        self._detector.activity = f"{call.name} number {self.sequence}"
        self._call_context.timeout_s = timeout_s
        by_request = route != "device" and requested not in SHARED
        named = "shared memory" if route == "shared" else requested if by_request else "messages"
        self._call_log.begin(self.sequence, call, named, in_shm=route == "shared")
        if self._spans is not None:
            self._call_context.begin(call)
        self._count(call)
        if self.check and self.size > 1:
            if route == "device":
                call = call._replace(name=f"{call.name} of device memory")
            elif by_request:
                call = call._replace(name=f"{call.name} by {requested}")
            with self._call_context:
                self._set_up.tag, self._set_up.timeout_s = CHECK_TAG, timeout_s
                compare_calls(self._set_up, call, self._detector.rank_label)
        return self._call_context

    def _is_unwatched(self) -> bool:
        usable = self._broken is None and not self._closed
        return usable and self._traffic is None and self._spans is None

    def _fastest(self) -> ShmGroup | None:
        is_direct = not self._check and self._requested in SHARED
        return self._shm if is_direct and self._is_unwatched() else None

    def _count(self, call: Call) -> None:
        if self._traffic is not None and call.dtype is not None:
            self._traffic.begin(call.name, payload_bytes(call, self.rank))

    def _request(self, tag: int) -> MessageRequest:
        self._in_flight.sweep()
        request = MessageRequest(
            self._detector,
            self._communicators.own,
            tag,
            self._in_flight,
            self._traffic,
            self._link_emulator,
        )
        request.spans = self._spans
        self._in_flight.add(request)
        return request

    def _is_dead(self, rank: int) -> bool:
        if self._shm is not None:
            return self._shm.is_dead(rank)
        if self._intra_node is not None and rank in self._intra_node.group_ranks:
            return self._intra_node.is_dead(self._intra_node.group_ranks.index(rank))
        return False

    def _expect_messages(self) -> None:
        if self._shm is not None:
            self._shm.keep_messages_moving()

    def _end(self, call: Call, timeout_s: float | None, error: BaseException) -> None:
        """Handle a failure of the fast route as a context of `_begin` does."""
        self._detector.activity = f"{call.name} number {self.sequence}"
        self._call_context.timeout_s = timeout_s
        if isinstance(error, TypeError):
            self.sequence -= 1  # not begun
        else:
            self._call_context.__exit__(type(error), error, None)

    def _break(self, error: BaseException) -> None:
        """Mark the group unusable, and report it to ranks that wait in shared memory."""
        self._broken, self._fast = error, None
        reason = encodable(str(error)) or type(error).__name__
        if not isinstance(error, PeerFailedError):
            self._fail_shm(reason)
        path = self._recorder.write(reason)
        if path is not None and isinstance(error, FAILURES):
            error.args = (f"{reason} (its last collectives: {path})",)

    def _fail_shm(self, reason: str) -> None:
        for shm in (self._shm, self._intra_node):
            if shm is not None:
                shm.fail(reason)

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(f"group {self.name} is closed")
        if self._broken is not None:
            raise PeerFailedError(f"group {self.name} cannot be used any more: {self._broken}")


def encodable(text: str) -> str:
    """Escape what UTF-8 has no bytes for, such as the odd bytes of a file's name."""
    return text.encode(errors="backslashreplace").decode()
