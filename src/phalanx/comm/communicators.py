"""The communicators of a group: its own, so that its messages meet no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.comm.wait import WaitPolicy, wait_until


class Communicators:
    """One for collectives, one for the messages of users, one for notices and set-up."""

    def __init__(self, communicator: Any, policy: WaitPolicy, timeout_s: float, group: str) -> None:
        """communicator: of the members. Collective.

        Raises: WaitTimeoutError when not all members come.
        """
        made = [communicator.Idup() for _ in range(3)]
        self.collectives, self.messages, self.notices = (duplicate for duplicate, _ in made)
        for _, request in made:
            wait_until(
                request.Test,
                policy,
                timeout_s=timeout_s,
                on_timeout=lambda: (
                    f"rank {communicator.Get_rank()} waited {timeout_s:g} s for the other members "
                    f"of group {group} to make it"
                ),
            )

    def close(self) -> None:
        for communicator in (self.collectives, self.messages, self.notices):
            communicator.Free()


def communicator_of(communicator: Any, members: Sequence[int], tag: int) -> Any:
    """Of some of the ranks of another; called by them only. The caller frees it."""
    everyone = communicator.Get_group()
    some = everyone.Incl(members)
    made = communicator.Create_group(some, tag)
    some.Free()
    everyone.Free()
    return made
