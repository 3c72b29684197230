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
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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


class KernelLog(NamedTuple):
    """Log of calls that the kernels keep in one shared-memory group."""

    begun: int
    """Calls so far, of which the last ones are kept."""
    is_done: bool
    """The last one has completed."""
    calls: Sequence[tuple[str, str, int]]
    """Name, call in words, when it began; the oldest first."""


EMPTY_LOG = KernelLog(0, True, ())


class RecordedGroup(Protocol):
    """A group, as the recorder sees it."""

    spans: SpanRecorder | None

    def last_calls(self) -> GroupCalls:
        """The last collectives of this rank."""

    def call_state(self) -> tuple[int, bool]:
        """As `Group.call_state`."""


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
        """From now on until nobody else holds it."""
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


class CallLog:
    """Log of the collectives of one group that take a slower route than the fastest."""

    __slots__ = ("_entries", "finished")

    def __init__(self) -> None:
        # Plain tuples: to make a `LoggedCall` takes several times as long.
        self._entries: deque[tuple[int, Call, str, bool, int]] = deque(maxlen=MAX_LOGGED)
        self.finished = 0
        """Number of the last one that completed."""

    def begin(self, number: int, call: Call, way: str, *, in_shm: bool) -> None:
        self._entries.append((number, call, way, in_shm, now_ns()))

    def merged(self, number: int, kernels: KernelLog) -> list[LastCall]:
        """Return all calls, the oldest first. number: of the group's last collective."""
        return merge_logs(number, [*map(LoggedCall._make, self._entries)], self.finished, kernels)


def merge_logs(
    number: int, logged: Sequence[LoggedCall], finished: int, kernels: KernelLog
) -> list[LastCall]:
    """Merge both logs of a group into its last collectives, the oldest first. Pure.

    Numbers that are not among `logged` took the fastest route, through the kernels, which know
    their order but not their numbers: both logs are read from the last entry backwards.
    number: of the last one; finished: the last of `logged` that completed.
    """
    calls: list[LastCall] = []
    slow, fast = list(logged), list(kernels.calls)
    last_is_done = kernels.is_done
    while number > 0 and len(calls) < MAX_LOGGED:
        if slow and slow[-1].number == number:
            entry = slow.pop()
            if entry.in_shm and fast and fast[-1][0] == entry.call.name:
                fast.pop()
            is_done = bool(calls) or finished == number
            calls.append(_last_call(entry, is_done=is_done))
        elif fast:
            calls.append(_kernel_call(number, fast.pop(), is_done=bool(calls) or last_is_done))
        else:
            break
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


def kernel_calls(kernels: KernelLog) -> list[LastCall]:
    """Return the logged calls of a shared-memory group outside any `Group`, numbered from 1."""
    calls = kernels.calls[-MAX_LOGGED:]
    first = kernels.begun - len(calls) + 1
    return [
        _kernel_call(number, call, is_done=number < kernels.begun or kernels.is_done)
        for number, call in enumerate(calls, first)
    ]


def _kernel_call(number: int, logged: tuple[str, str, int], *, is_done: bool) -> LastCall:
    name, call, began_ns = logged
    return LastCall(
        number=number,
        name=name,
        call=call,
        way="shared memory",
        began_ns=began_ns,
        is_done=is_done,
    )


def _last_call(entry: LoggedCall, *, is_done: bool) -> LastCall:
    return LastCall(
        number=entry.number,
        name=entry.call.name,
        call=str(entry.call),
        way=entry.way,
        began_ns=entry.began_ns,
        is_done=is_done,
    )


def _of(group: GroupCalls, label: str) -> GroupCalls:
    name = f"{group.group} of {label}"
    return GroupCalls(group=name, members=group.members, calls=group.calls)
