"""Bytes that a rank sends and receives: counted where requested, and expected by formulas.

Point-to-point, the bytes of every message are counted when it is sent and when it is received. In
shared memory nothing is sent: a rank reads what its peers wrote. There the count is what the scheme
moves between ranks: the owner of a share takes that share from all peers, reduces it, and hands
the result to all. `direct` sends just this in messages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.comm.call import Call
from phalanx.comm.layout import share_of

COUNT = "PHALANX_COUNT"  # "1": the world's group counts from its beginning on


class Moved(NamedTuple):
    """Bytes and messages that one rank sends and receives in one collective."""

    sent_bytes: int
    received_bytes: int
    messages: int
    """Sent ones, of a byte or more."""


@dataclass
class Count:
    calls: int = 0
    bytes: int = 0


@dataclass
class Traffic:
    """Counter of what a rank has sent and received, in all groups that it was given to.

    Barriers, notices and the comparison of calls (`PHALANX_CHECK`) are not counted.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    """Messages sent, of a byte or more; in shared memory: peers that something was handed to."""
    payload: dict[str, Count] = field(default_factory=dict)
    """By collective ("all_reduce", "send" …): calls that were begun, and bytes of the buffers that
    this rank handed in. For `receive` those of the buffer to be filled."""
    _guard: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def add(self, moved: Moved) -> None:
        """Something has been sent, received, or both."""
        with self._guard:
            self.sent_bytes += moved.sent_bytes
            self.received_bytes += moved.received_bytes
            self.messages += moved.messages

    def begin(self, name: str, num_bytes: int) -> None:
        """A collective begins, on buffers of so many bytes."""
        with self._guard:
            count = self.payload.setdefault(name, Count())
            count.calls += 1
            count.bytes += num_bytes

    def collective(self, name: str, num_bytes: int, moved: Moved) -> None:
        """A whole one, for those that are no call of a group."""
        self.begin(name, num_bytes)
        self.add(moved)

    def snapshot(self) -> Traffic:
        """As it is now; this one counts on."""
        with self._guard:
            payload = {name: Count(c.calls, c.bytes) for name, c in self.payload.items()}
            return Traffic(self.sent_bytes, self.received_bytes, self.messages, payload)

    def __sub__(self, earlier: Traffic) -> Traffic:
        """Return the traffic since `earlier`, a snapshot of this one. Collectives without a call in
        between are left out."""
        nothing = Count()
        payload = {}
        for name, count in self.snapshot().payload.items():
            before = earlier.payload.get(name, nothing)
            if count.calls > before.calls:
                payload[name] = Count(count.calls - before.calls, count.bytes - before.bytes)
        return Traffic(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.messages - earlier.messages,
            payload,
        )


def handed_in(call: Call, rank: int) -> int:
    """Bytes of the buffers that `rank` hands to a collective."""
    if call.dtype is None:
        return 0
    counts: Sequence[int | None] = call.counts or call.sent
    if call.name == "all_gather":
        counts = (call.counts[rank],)
    return call.dtype.itemsize * sum(count for count in counts if count is not None)


def all_reduced(count: int, itemsize: int, rank: int, size: int) -> Moved:
    """In two rounds, each rank the owner of its share. count: elements of the vector."""
    shares = [len(share_of(peer, size, count)) * itemsize for peer in range(size)]
    return together([reduce_scattered(shares, rank), all_gathered(shares, rank)])


def reduced_by_share(num_bytes: int, own_bytes: int, size: int) -> Moved:
    """The same of a vector that is cut in another way, of which this rank owns `own_bytes`."""
    moved_bytes = num_bytes - own_bytes + (size - 1) * own_bytes
    rounds = (num_bytes > own_bytes) + (own_bytes > 0)
    return Moved(moved_bytes, moved_bytes, rounds * (size - 1))


def reduced(count: int, itemsize: int, rank: int, size: int, root: int) -> Moved:
    """The same; the shares' results go to `root` alone."""
    shares = [len(share_of(peer, size, count)) * itemsize for peer in range(size)]
    return together([reduce_scattered(shares, rank), gathered(shares, rank, root)])


def reduce_scattered(parts: Sequence[int], rank: int) -> Moved:
    """parts: bytes of each rank's part."""
    others = _without(parts, rank)
    return Moved(sum(others), len(others) * parts[rank], _not_empty(others))


def all_gathered(parts: Sequence[int], rank: int) -> Moved:
    """parts: bytes of each rank's part."""
    others = _without(parts, rank)
    return Moved(len(others) * parts[rank], sum(others), len(others) if parts[rank] else 0)


def broadcasted(num_bytes: int, rank: int, size: int, root: int) -> Moved:
    """Everybody takes it from the root. A tree on messages has others hand it on."""
    if rank != root:
        return Moved(0, num_bytes, 0)
    return Moved((size - 1) * num_bytes, 0, size - 1 if num_bytes else 0)


def exchanged(sent: Sequence[int], received: Sequence[int], rank: int) -> Moved:
    """All to all. Bytes for each rank, and from each."""
    others = _without(sent, rank)
    return Moved(sum(others), sum(_without(received, rank)), _not_empty(others))


def gathered(parts: Sequence[int], rank: int, root: int) -> Moved:
    """parts: bytes of each rank's part; only those that this rank sends or receives count."""
    if rank == root:
        return Moved(0, sum(_without(parts, root)), 0)
    return Moved(parts[rank], 0, 1 if parts[rank] else 0)


def scattered(parts: Sequence[int], rank: int, root: int) -> Moved:
    """parts: bytes of each rank's part; only those that this rank sends or receives count."""
    if rank != root:
        return Moved(0, parts[rank], 0)
    others = _without(parts, root)
    return Moved(sum(others), 0, _not_empty(others))


def together(moves: Sequence[Moved]) -> Moved:
    """One after the other."""
    return Moved(*map(sum, zip(Moved(0, 0, 0), *moves, strict=True)))


def _without(parts: Sequence[int], rank: int) -> list[int]:
    return [part for peer, part in enumerate(parts) if peer != rank]


def _not_empty(parts: Sequence[int]) -> int:
    return sum(1 for part in parts if part)
