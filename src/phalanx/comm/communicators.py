"""The communicators of a group: its own, so that its messages meet no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.comm.wait import WaitPolicy, WaitTimeoutError, wait_until

CLOSING_TIMEOUT_S = 1.0


class Communicators:
    """One for collectives, one for the messages of users, one for notices and set-up."""

    def __init__(self, communicator: Any, policy: WaitPolicy, timeout_s: float, group: str) -> None:
        """communicator: of the members. Collective.

        Raises: WaitTimeoutError when not all members come.
        """
        self._policy, self._timeout_s, self._group = policy, timeout_s, group
        # One after the other: Open MPI 5.0 can hang when it seeks numbers for several at once.
        self.collectives = self._duplicate(communicator)
        self.messages = self._duplicate(communicator)
        self.notices = self._duplicate(communicator)

    def _duplicate(self, communicator: Any) -> Any:
        made, request = communicator.Idup()
        wait_until(
            request.Test,
            self._policy,
            timeout_s=self._timeout_s,
            on_timeout=lambda: (
                f"rank {communicator.Get_rank()} waited {self._timeout_s:g} s for the other "
                f"members of group {self._group} to make it"
            ),
        )
        return made

    def close(self) -> None:
        """Free them, once all members want to; leave them where some do not come to it.

        A communicator's number is given to another one after it was freed. Messages that a slow
        member still sent would reach that one; Open MPI 5.0 aborts the job when their sender is
        not in it. What has come and nobody received is thrown away for the same reason.
        """
        try:
            wait_until(
                self.messages.Ibarrier().Test,  # where no collective of MPI may be under way
                self._policy,
                timeout_s=CLOSING_TIMEOUT_S,
                on_timeout=lambda: "not all members close the group",
            )
        except WaitTimeoutError:
            return
        for communicator in (self.messages, self.notices):
            drain(communicator)
        for communicator in (self.collectives, self.messages, self.notices):
            communicator.Free()


def drain(communicator: Any) -> None:
    """Receive, and forget, what has arrived."""
    from mpi4py import MPI

    status = MPI.Status()
    while (message := communicator.Improbe(status=status)) is not None:
        message.Recv(bytearray(status.Get_count()))


def communicator_of(communicator: Any, members: Sequence[int], tag: int) -> Any:
    """Of some of the ranks of another; called by them only. The caller frees it."""
    everyone = communicator.Get_group()
    some = everyone.Incl(members)
    made = communicator.Create_group(some, tag)
    some.Free()
    everyone.Free()
    return made
