"""Connections of a rank to the members of a group: messages, shared memory, notices of failure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from phalanx.comm.communicators import (
    CLOSING_TIMEOUT_S,
    FIRST_COLLECTIVE_TAG,
    FIRST_USER_TAG,
    SET_UP_TAG,
    OpenCommunicators,
    tag_limit,
)
from phalanx.comm.errors import PeerFailedError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.link_emulator import LinkEmulator
from phalanx.comm.message_request import MessageRequest
from phalanx.comm.messages import MessageTransport
from phalanx.comm.progress import call_in_waits, call_no_more
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.set_up import SetupCommunicator, await_call, duplicate
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy
from phalanx.records.spans import SpanRecorder

FIRST_SUBGROUP_TAG = 1
"""The tags of subgroups begin beside that of the notices, on the same communicator."""


class Connections:
    """Connections of this rank to the members of one group, which uses and closes them."""

    def __init__(
        self,
        communicator: Any,
        *,
        name: str,
        labels: RankLabels,
        nodes: tuple[int, ...],
        policy: WaitPolicy,
        timeout_s: float,
        parent: FailureDetector | None = None,
        link_emulator: LinkEmulator | None = None,
        still_open: OpenCommunicators | None = None,
    ) -> None:
        """communicator: of the members, in their order; it is not used afterwards. name: of the
        group; nodes: the number of each rank's node. parent: of the group from which this one is
        made. link_emulator: the emulated link by which messages leave;
        set-up and the comparison of calls do not. still_open: communicators of groups closed
        before. Collective.

        Raises: WaitTimeoutError naming the members that did not come.
        """
        self.name, self.nodes, self.policy = name, nodes, policy
        self.labels, self.members = labels, labels.members
        """Names of the members in errors, and their ranks in the world."""
        self.link_emulator = link_emulator
        self._still_open = OpenCommunicators() if still_open is None else still_open
        waits = policy.between_nodes() if len(set(nodes)) > 1 else policy

        def detect_failures(communicator: Any, tag: int = 0) -> FailureDetector:
            return FailureDetector(
                communicator,
                group=name,
                labels=labels,
                policy=waits,
                timeout_s=timeout_s,
                parent=parent,
                tag=tag,
            )

        joining = detect_failures(communicator, tag_limit())
        self._still_open.sweep()
        self._communicator = own = self._still_open.track(duplicate(communicator, joining))
        joining.close()
        self.max_tag = tag_limit() - FIRST_USER_TAG
        """The greatest tag of messages of users; the least is 0."""
        self.rank: int = own.Get_rank()
        self.size: int = own.Get_size()
        self.detector = detect_failures(own)
        self.transport = MessageTransport(
            own, self.detector, link_emulator, first_tag=FIRST_COLLECTIVE_TAG, nodes=nodes
        )
        self.set_up = SetupCommunicator(own, self.detector)
        local = [rank for rank, node in enumerate(nodes) if node == nodes[self.rank]]
        self._local = self._join_memory(local)
        """The ranks of this node, where those of every node share memory."""
        is_whole = len(local) == self.size
        self.shm = self._local if is_whole else None
        """All ranks, where they share memory."""
        self.intra_node = None if is_whole else self._local
        """The ranks of this node, of several nodes."""
        self.detector.bell = self.shm
        self.detector.is_dead = self._is_dead

    def _join_memory(self, local: Sequence[int]) -> ShmGroup | None:
        """Join the ranks on this node. Collective. None, on all ranks, where those of some node do
        not share memory, or no node has several."""
        if len(set(self.nodes)) == self.size:
            return None
        joined = ShmGroup.join(
            SetupCommunicator(self._communicator, self.detector, local),
            policy=self.policy,
            name=self.name,
            timeout_s=self.timeout_s,
            group_ranks=local,
            label=self.labels.short,
        )
        if len(local) == self.size:
            return joined
        everyone = self.set_up.allgather(joined is not None or len(local) == 1)
        if joined is None or not all(everyone):
            return None
        # A rank in a collective by lanes waits in shared memory for a rank that waits for a
        # message, perhaps one that this rank has yet to send.
        joined.keep_messages_moving()
        call_in_waits(self.detector.answer_in_memory)
        return joined

    def subset(
        self, members: Sequence[int], *, name: str, tag: int, policy: WaitPolicy | None
    ) -> Connections:
        """Connect some of the ranks, in the order given; called by these only."""
        communicator = self.make_communicator(members, name=name, tag=tag)
        made = Connections(
            communicator,
            name=name,
            labels=self.labels.subset(members),
            nodes=tuple(self.nodes[rank] for rank in members),
            policy=policy or self.policy,
            timeout_s=self.timeout_s,
            parent=self.detector,
            link_emulator=self.link_emulator,
            still_open=self._still_open,
        )
        communicator.Free()
        return made

    def make_communicator(self, members: Sequence[int], *, name: str, tag: int = 0) -> Any:
        """Return a communicator of some of the ranks, in the order given; called by these only.

        name: of what is made, in errors.
        """
        self.detector.activity = f"making the subgroup {name}"
        # First synchronize, with a timeout; what MPI then does has none, but need not wait.
        tag = FIRST_SUBGROUP_TAG + tag % (SET_UP_TAG - FIRST_SUBGROUP_TAG)
        SetupCommunicator(self._communicator, self.detector, members, tag=tag).Barrier()
        everyone = self._communicator.Get_group()
        some = everyone.Incl(members)
        create = partial(self._communicator.Create_group, some, tag)
        communicator = await_call(self.detector, create)
        some.Free()
        everyone.Free()
        return communicator

    @property
    def timeout_s(self) -> float:
        """Timeout of waits without an explicit one."""
        return self.detector.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.detector.timeout_s = timeout_s
        if self._local is not None:
            self._local.timeout_s = timeout_s

    def request(self, tag: int, spans: SpanRecorder | None) -> MessageRequest:
        """Return a message to be sent or received. Arguments: as of `MessageRequest`."""
        if self.shm is not None:
            self.shm.keep_messages_moving()
        self.transport.in_flight.sweep()
        return MessageRequest(self.transport, tag, spans)

    def call_state(self) -> tuple[int, bool]:
        """Return as `Group.call_state`."""
        return (0, False) if self._local is None else self._local.call_state()

    def check_peers(self) -> None:
        """Raises: PeerFailedError when a member has reported a failure."""
        if self.shm is not None:
            self.shm.check_peers()
        self.detector.read_notices()

    def report_failure(self, reason: str) -> None:
        """Report to all members that this rank has failed, which also ends its waits."""
        self.detector.failed[self.members[self.rank]] = reason
        self.fail_shm(reason)
        self.detector.report_failure(reason)

    def fail_shm(self, reason: str) -> None:
        """Report a failure of this rank to ranks that wait in shared memory."""
        if self._local is not None:
            self._local.fail(reason)

    def leave_shm(self, reason: str) -> None:
        """Report a failure, and wake ranks that sleep on a doorbell."""
        if self._local is not None:
            self._local.fail(reason)
            for rank in range(self._local.size):
                self._local.ring(rank)

    def close(self, *, is_broken: bool) -> None:
        """Free communicators and memory; waits for the peers up to a second."""
        self.shm = self.intra_node = self._local = None
        call_no_more(self.detector.answer_in_memory)
        self.detector.close()
        self.transport.in_flight.close(
            PeerFailedError(f"group {self.name} was closed before the message arrived")
        )
        if not is_broken:
            if self.link_emulator is not None:
                self.link_emulator.flush()
            self._still_open.close(self._communicator, self.policy, CLOSING_TIMEOUT_S)
        # Else they stay: messages may still come, and would reach whoever got their numbers next.

    def _is_dead(self, rank: int) -> bool:
        local = self._local
        if local is None or rank not in local.group_ranks:
            return False
        return local.is_dead(local.group_ranks.index(rank))
