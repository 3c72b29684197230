"""Matching of messages with the receives that wait for them, by MPI's rules.

A message has a context (the communicator), a source and a tag. It goes to the first posted receive
that takes it; one that none takes is kept until a receive does. Messages of one source with one tag
are taken in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

ANY = -1


class Receiver(Protocol):
    """A posted receive."""

    memory: memoryview
    source: int
    """Rank in the world, or ANY."""
    tag: int

    def complete(self, arrival: Arrival) -> None:
        """The message is there: in `memory`, if it is not longer."""

    def fail(self, rank: int) -> None:
        """`rank`, from which it was to come, has gone."""


class Arrival:
    """A message that comes in, or has come; one that a probe has taken is mpi4py's message."""

    __slots__ = ("is_complete", "memory", "num_bytes", "receiver", "source", "tag")

    def __init__(self, source: int, tag: int, num_bytes: int) -> None:
        self.source, self.tag, self.num_bytes = source, tag, num_bytes
        self.receiver: Receiver | None = None
        self.memory = memoryview(b"")
        self.is_complete = False

    def Recv(self, memory: Any) -> None:  # noqa: N802  as mpi4py has it
        memoryview(memory).cast("B")[: self.num_bytes] = self.memory


class Inbox:
    """Posted receives and arrived messages of one rank; its owner guards it against threads."""

    def __init__(self) -> None:
        self._posted: dict[int, deque[Receiver]] = {}
        self._arrived: dict[int, deque[Arrival]] = {}
        self._gone: set[int] = set()

    def begin(self, context: int, source: int, tag: int, num_bytes: int) -> Arrival:
        """A message begins to come in; its bytes go to `memory` of the result."""
        arrival = Arrival(source, tag, num_bytes)
        # A copy: a receive that the garbage collector finds is withdrawn in the middle of this.
        posted = tuple(self._posted.get(context, ()))
        receiver = next((r for r in posted if _takes(r, source, tag)), None)
        if receiver is not None and self.withdraw(context, receiver):
            arrival.receiver = receiver
        else:
            receiver = None
            self._arrived.setdefault(context, deque()).append(arrival)
        if receiver is not None and num_bytes <= len(receiver.memory):
            arrival.memory = receiver.memory[:num_bytes]
        else:
            arrival.memory = memoryview(bytearray(num_bytes))
        return arrival

    def complete(self, arrival: Arrival) -> None:
        arrival.is_complete = True
        if arrival.receiver is not None:
            arrival.receiver.complete(arrival)

    def post(self, context: int, receiver: Receiver) -> None:
        arrival = self._first(context, receiver.source, receiver.tag)
        if arrival is not None:
            self._arrived[context].remove(arrival)
            arrival.receiver = receiver
            if arrival.is_complete:
                receiver.complete(arrival)
        elif receiver.source in self._gone:
            receiver.fail(receiver.source)
        else:
            self._posted.setdefault(context, deque()).append(receiver)

    def withdraw(self, context: int, receiver: Receiver) -> bool:
        """Return whether it was still posted; then no message goes to it any more."""
        try:
            self._posted.get(context, deque()).remove(receiver)
        except ValueError:
            return False
        return True

    def take(self, context: int, source: int, tag: int) -> Arrival | None:
        """The first message that a receive would get, once it has come whole."""
        arrival = self._first(context, source, tag)
        if arrival is None or not arrival.is_complete:
            return None
        self._arrived[context].remove(arrival)
        return arrival

    def is_dead(self, source: int) -> bool:
        return source in self._gone

    def mark_dead(self, source: int) -> None:
        """Nothing will come from `source` any more."""
        self._gone.add(source)
        for posted in self._posted.values():
            for receiver in [r for r in posted if r.source == source]:
                posted.remove(receiver)
                receiver.fail(source)

    def forget(self, context: int) -> None:
        """The communicator is freed."""
        self._posted.pop(context, None)
        self._arrived.pop(context, None)

    def _first(self, context: int, source: int, tag: int) -> Arrival | None:
        for arrival in self._arrived.get(context, ()):
            if source in (ANY, arrival.source) and tag in (ANY, arrival.tag):
                return arrival
        return None


def _takes(receiver: Receiver, source: int, tag: int) -> bool:
    return receiver.source in (ANY, source) and receiver.tag in (ANY, tag)
