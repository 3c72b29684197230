"""The communicator of a group: its own, so that its messages meet no others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.mpi import mpi
from phalanx.comm.set_up import duplicate
from phalanx.comm.wait import WaitPolicy, WaitTimeoutError, wait_until

CLOSING_TIMEOUT_S = 1.0

TAGS = 2**15  # the fewest that MPI grants; all that we use grant 2**19 or more
# Tags tell the kinds of messages apart: notices and set-up, collectives, those of users.
FIRST_COLLECTIVE_TAG, FIRST_USER_TAG = TAGS, 2 * TAGS


class OpenCommunicators:
    """Communicators that this rank has closed, and that some members still use.

    A communicator's number is given to another one after it was freed. Messages that a slow member
    still sent would reach that one; Open MPI 5.0 aborts the job when their sender is not in it. So
    each is freed once all members have closed it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._closing: list[tuple[Any, Any]] = []

    def close(self, communicator: Any, policy: WaitPolicy, timeout_s: float) -> None:
        """Free it when all members have closed it: here and now if that is soon, else later."""
        with self._guard:
            self._closing.append((communicator, communicator.Ibarrier()))
        self.finish(policy, timeout_s)

    def finish(self, policy: WaitPolicy, timeout_s: float) -> None:
        """Free those that all members have closed; wait for the others up to `timeout_s`."""
        try:
            wait_until(self.sweep, policy, timeout_s=timeout_s, on_timeout=lambda: "not all close")
        except WaitTimeoutError:
            return

    def sweep(self) -> bool:
        """Free those that all members have closed; whether none is left."""
        with self._guard:
            left = []
            for communicator, barrier in self._closing:
                if barrier.Test():
                    drain(communicator)
                    communicator.Free()
                else:
                    left.append((communicator, barrier))
            self._closing = left
            return not left


class Communicators:
    """A group's duplicate of a communicator, freed when all members have closed it."""

    def __init__(
        self,
        communicator: Any,
        detector: FailureDetector,
        still_open: OpenCommunicators | None = None,
    ) -> None:
        """communicator: of the members; detector: of them, for the time of this call; still_open:
        those of groups closed before. Collective.

        Raises: WaitTimeoutError naming the members that did not come.
        """
        self._policy = detector.policy
        self.still_open = OpenCommunicators() if still_open is None else still_open
        self.still_open.sweep()
        self.own = duplicate(communicator, detector)
        self.max_tag = tag_limit(self.own) - FIRST_USER_TAG
        """Of the messages of users; the least is 0."""

    def close(self) -> None:
        """Free it once all members have closed it: now, if they do so within a second."""
        self.still_open.close(self.own, self._policy, CLOSING_TIMEOUT_S)


def drain(communicator: Any) -> None:
    """Receive, and forget, what has arrived."""
    status = mpi().Status()
    while (message := communicator.Improbe(status=status)) is not None:
        message.Recv(bytearray(status.Get_count()))


def create_subcommunicator(communicator: Any, members: Sequence[int], tag: int) -> Any:
    """Create a communicator of some of the ranks of another; called by these ranks only.

    The caller frees it.
    """
    everyone = communicator.Get_group()
    some = everyone.Incl(members)
    made = communicator.Create_group(some, tag)
    some.Free()
    everyone.Free()
    return made


def tag_limit(communicator: Any) -> int:
    """The greatest tag of its messages."""
    return int(communicator.Get_attr(mpi().TAG_UB))
