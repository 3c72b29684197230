"""Flight recorder: the last collectives of every group of a world, logged at negligible cost.

The shared-memory kernels log each call in a ring buffer (`csrc/shm.c`: a few nanoseconds); calls
that take another route, and longer, are logged here. Both are merged only when something has gone
wrong and the recorder writes them to a file. In a traced run the recorder also gives every group
its list of spans.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from phalanx.comm.collective import Call
from phalanx.records.last_collectives import (
    GroupCalls,
    LastCall,
    LastCollectives,
    dump_folder,
    write_last_collectives,
)
from phalanx.records.spans import Detail, SpanRecorder, now_ns

NETWORK = "network"
"""The lane of collectives in a trace."""

MAX_LOGGED = 256
"""Collectives of each group; as many as `NUM_LOGGED` of the kernels."""


class LoggedCall(NamedTuple):
    """A collective that took another route than the fastest."""

    number: int
    call: Call
    way: str
    in_shm: bool
    """The kernels have logged it as well."""
    began_ns: int


class RecordedGroup(Protocol):
    """A group, as the recorder sees it."""

    spans: SpanRecorder | None

    def last_calls(self) -> GroupCalls:
        """The last collectives of this rank."""

    def call_state(self) -> tuple[int, bool]:
        """Return the state of calls, as `Group.call_state`."""


class FlightRecorder:
    """Flight recorder of one world on one rank."""

    def __init__(self, rank: int) -> None:
        """rank: in the world."""
        self.rank = rank
        self.label = ""
        """Whose world it is, where a process has several."""
        self.spans: SpanRecorder | None = None
        self._groups: list[weakref.ref[Any]] = []

    def register(self, group: RecordedGroup) -> None:
        """Record the calls of `group` until nothing else refers to it."""
        self._groups = [known for known in self._groups if known() is not None]
        self._groups.append(weakref.ref(group))
        if self.spans is not None:
            group.spans = self.spans

    def trace(self, spans: SpanRecorder | None) -> None:
        """Every collective of the groups that there are and will be adds a span; None: no more."""
        self.spans = spans
        for group in self.registered():
            group.spans = spans

    def write(self, reason: str) -> Path | None:
        """Write down the last collectives of all groups, where there is a folder for it.

        Never raises: it is called when something worse has happened.
        """
        folder = dump_folder()
        if folder is None:
            return None
        groups = [group.last_calls() for group in self.registered()]
        if self.label:
            groups = [_of(group, self.label) for group in groups]
        with contextlib.suppress(OSError, ValueError):
            last = LastCollectives(
                rank=self.rank,
                hostname=socket.gethostname(),
                process_id=os.getpid(),
                written_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                now_ns=now_ns(),
                reason=reason,
                groups=[group for group in groups if group.calls],
            )
            return write_last_collectives(folder, last)
        return None

    def registered(self) -> list[Any]:
        """Return the groups that somebody still holds."""
        return [group for known in self._groups if (group := known()) is not None]


def merge_logs(
    number: int, logged: Sequence[LoggedCall], finished: int, kernels: Sequence[LastCall]
) -> list[LastCall]:
    """Merge both logs of a group into its last collectives, the oldest first. Pure.

    Numbers that are not among `logged` took the fastest route, through the kernels, which know
    their order but not their numbers: both logs are read from the last entry backwards.
    number: of the last one; finished: the last of `logged` that completed.
    """
    calls: list[LastCall] = []
    slow, fast = list(logged), list(kernels)
    while number > 0 and len(calls) < MAX_LOGGED:
        if slow and slow[-1].number == number:
            _, call, way, in_shm, began_ns = slow.pop()
            if in_shm and fast and fast[-1].name == call.name:
                fast.pop()
            last = LastCall(
                number=number,
                name=call.name,
                call=str(call),
                way=way,
                began_ns=began_ns,
                is_done=finished == number,
            )
        elif fast:
            last = msgspec.structs.replace(fast.pop(), number=number)
        else:
            break
        calls.append(msgspec.structs.replace(last, is_done=True) if calls else last)
        number -= 1
    return calls[::-1]


def collective_detail(group: str, members: Sequence[int], number: int, num_bytes: int) -> Detail:
    """Return the fields by which a trace matches a collective across ranks.

    Groups of one name that are made at the same time have no member in common: the first member
    tells them apart.
    """
    return {
        "group": group,
        "first": members[0],
        "size": len(members),
        "number": number,
        "bytes": num_bytes,
    }


def _of(group: GroupCalls, label: str) -> GroupCalls:
    name = f"{group.group} of {label}"
    return GroupCalls(group=name, members=group.members, calls=group.calls)
