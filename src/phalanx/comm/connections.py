"""Connections of a rank to the members of a group: messages, shared memory, notices of failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.comm.collectives.dissemination import barrier
from phalanx.comm.communicators import (
    FIRST_COLLECTIVE_TAG,
    TAGS,
    Communicators,
    OpenCommunicators,
    create_subcommunicator,
    tag_limit,
)
from phalanx.comm.errors import PeerFailedError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.link_emulator import LinkEmulator
from phalanx.comm.messages import MessageRequest, MessageTransport
from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.shm import ShmGroup
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.transport import SubTransport
from phalanx.comm.wait import WaitPolicy
from phalanx.records.spans import SpanRecorder

# On the communicator for notices, beside the tag of the notices themselves.
CHECK_TAG, FIRST_SUBGROUP_TAG = 1, 2


class Connections:
    """Connections of this rank to the members of one group, which uses and closes them."""

    def __init__(
        self,
        communicator: Any,
        *,
        group: str,
        members: tuple[int, ...],
        nodes: tuple[int, ...],
        policy: WaitPolicy,
        timeout_s: float,
        parent: FailureDetector | None,
        link_emulator: LinkEmulator | None,
        still_open: OpenCommunicators | None,
    ) -> None:
        """Arguments: as of `Group`. Collective."""
        self._group, self._members = group, members

        def detect_failures(communicator: Any, tag: int = 0) -> FailureDetector:
            return FailureDetector(
                communicator,
                group=group,
                members=members,
                policy=policy,
                timeout_s=timeout_s,
                parent=parent,
                tag=tag,
            )

        joining = detect_failures(communicator, tag_limit(communicator))
        self._communicators = Communicators(communicator, joining, still_open)
        joining.close()
        own = self._communicators.own
        self.rank: int = own.Get_rank()
        self.size: int = own.Get_size()
        self.detector = detect_failures(own)
        self.link_emulator = link_emulator
        self.transport = MessageTransport(
            own, self.detector, link_emulator, first_tag=FIRST_COLLECTIVE_TAG
        )
        self.set_up = MessageTransport(own, self.detector)
        self._in_flight = self.transport.in_flight = self.set_up.in_flight
        joined = SetupCommunicator(own, self.detector)
        self.intra_node = join_intra_node(joined, group, members, nodes, policy, timeout_s)
        """The ranks of this node, of several nodes, where those of every node share memory."""
        self.shm: ShmGroup | None = None
        """All ranks, where they share memory."""
        if len(nodes) > 1 and len(set(nodes)) == 1:
            self.shm = ShmGroup.join(joined, policy=policy, name=group, timeout_s=timeout_s)
        if self.shm is not None:
            self.detector.bell = self.shm.bell
        self.detector.is_dead = self._is_dead

    @property
    def max_tag(self) -> int:
        """The greatest tag of messages of users; the least is 0."""
        return self._communicators.max_tag

    @property
    def still_open(self) -> OpenCommunicators:
        """Communicators of closed groups that some members still use."""
        return self._communicators.still_open

    @property
    def timeout_s(self) -> float:
        """Timeout of every wait that is given none of its own."""
        return self.detector.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.detector.timeout_s = timeout_s
        for shm in self._in_memory():
            shm.timeout_s = timeout_s

    def create_subcommunicator(self, members: Sequence[int], tag: int) -> Any:
        """Create a communicator of some of the ranks, called by these; the caller frees it."""
        # First synchronize, with a timeout; what MPI then does has none, but need not wait.
        self.set_up.tag = tag = FIRST_SUBGROUP_TAG + tag % (TAGS - FIRST_SUBGROUP_TAG)
        barrier(SubTransport(self.set_up, members))
        return create_subcommunicator(self._communicators.own, members, tag)

    def request(
        self, tag: int, traffic: TrafficCounter | None, spans: SpanRecorder | None
    ) -> MessageRequest:
        """Return a message to be sent or received."""
        if self.shm is not None:
            self.shm.keep_messages_moving()
        self._in_flight.sweep()
        request = MessageRequest(
            self.detector,
            self._communicators.own,
            tag,
            self._in_flight,
            traffic,
            self.link_emulator,
        )
        request.spans = spans
        self._in_flight.add(request)
        return request

    def check_peers(self) -> None:
        """Raises: PeerFailedError when a member has reported a failure."""
        if self.shm is not None:
            self.shm.check_peers()
        self.detector.read_notices()

    def report_failure(self, reason: str) -> None:
        """Report to all members that this rank has failed, which ends its own waits as well."""
        self.detector.failed[self._members[self.rank]] = reason
        self.fail_shm(reason)
        self.detector.report_failure(reason)

    def fail_shm(self, reason: str) -> None:
        """Report a failure of this rank to those that wait in shared memory."""
        for shm in self._in_memory():
            shm.fail(reason)

    def close(self, *, is_broken: bool) -> None:
        """Free communicators and memory; waits for the peers up to a second."""
        self.shm = self.intra_node = None
        self.detector.close()
        self._in_flight.close(
            PeerFailedError(f"group {self._group} was closed before the message had come")
        )
        if not is_broken:
            if self.link_emulator is not None:
                self.link_emulator.flush()
            self._communicators.close()
        # Else they stay: messages may still come, and would reach whoever got their numbers next.

    def _in_memory(self) -> list[ShmGroup]:
        return [shm for shm in (self.shm, self.intra_node) if shm is not None]

    def _is_dead(self, rank: int) -> bool:
        if self.shm is not None:
            return self.shm.is_dead(rank)
        if self.intra_node is not None and rank in self.intra_node.group_ranks:
            return self.intra_node.is_dead(self.intra_node.group_ranks.index(rank))
        return False


def join_intra_node(
    communicator: SetupCommunicator,
    name: str,
    members: tuple[int, ...],
    nodes: tuple[int, ...],
    policy: WaitPolicy,
    timeout_s: float,
) -> ShmGroup | None:
    """Join the ranks on this node, of several nodes. Collective.

    None, on all ranks, where those of some node do not share memory. members: ranks in the world.
    """
    if len(set(nodes)) in (1, len(nodes)):
        return None
    rank = communicator.Get_rank()
    local = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    mine = communicator.split(nodes[rank], [members[other] for other in local])
    shm = ShmGroup.join(mine, policy=policy, name=name, timeout_s=timeout_s, group_ranks=local)
    mine.free()
    joined = communicator.allgather(shm is not None or len(local) == 1)
    return shm if all(joined) else None
