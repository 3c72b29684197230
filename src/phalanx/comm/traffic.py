"""Bytes that a rank sends and receives: counted where requested, and expected by formulas.

Point-to-point, the bytes of every message are counted when it is sent and when it is received. In
shared memory nothing is sent: a rank reads what its peers wrote. There the count is what the scheme
moves between ranks: the owner of a share takes that share from all peers, reduces it, and hands
the result to all. `direct` sends just this in messages.

What goes to other nodes, or comes from them, is told apart by the node of each peer. MPI does not
say what its own algorithms send: there the bytes of `direct` stand in, and are marked as such.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from phalanx.comm.collective import Call, Collective
from phalanx.comm.layout import share_of

COUNT = "PHALANX_COUNT"  # "1": the world's group counts from its beginning on


class Traffic(NamedTuple):
    """Bytes and messages that one rank sends and receives in one collective."""

    sent_bytes: int
    received_bytes: int
    messages: int
    """Sent ones, of a byte or more."""
    network_sent_bytes: int = 0
    """Part of `sent_bytes` that goes to other nodes."""
    network_received_bytes: int = 0
    """Part of `received_bytes` that comes from other nodes."""


@dataclass
class Count:
    calls: int = 0
    bytes: int = 0


@dataclass
class TrafficCounter:
    """Counter of what a rank has sent and received, in all groups that it was given to.

    Barriers, notices and the comparison of calls (`PHALANX_CHECK`) are not counted.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    """Messages sent, of a byte or more; in shared memory: peers that something was handed to."""
    network_sent_bytes: int = 0
    """Part of `sent_bytes` that goes to other nodes."""
    network_received_bytes: int = 0
    """Part of `received_bytes` that comes from other nodes."""
    payload: dict[str, Count] = field(default_factory=dict)
    """Counts by collective ("all_reduce", "send" …): calls that were begun, and bytes of the
    buffers that this rank handed in. For `receive` those of the buffer to be filled."""
    formula_bytes: int = 0
    """Part of `sent_bytes` of the MPI library's own algorithms: by the formula of `direct`."""
    node_s: float = field(default=0.0, compare=False)
    """Time in which this rank exchanged with peers of its node alone, or waited for them."""
    network_s: float = field(default=0.0, compare=False)
    """Time in which it exchanged with peers of other nodes, or waited for them."""
    _guard: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def add(self, traffic: Traffic, *, is_formula: bool = False) -> None:
        """Count what has been sent or received. is_formula: by the MPI library's own algorithms."""
        with self._guard:
            self.sent_bytes += traffic.sent_bytes
            self.received_bytes += traffic.received_bytes
            self.messages += traffic.messages
            self.network_sent_bytes += traffic.network_sent_bytes
            self.network_received_bytes += traffic.network_received_bytes
            if is_formula:
                self.formula_bytes += traffic.sent_bytes

    def add_time(self, elapsed_s: float, *, is_network: bool) -> None:
        """Add time of collectives and messages. is_network: ranks of other nodes took part."""
        with self._guard:
            if is_network:
                self.network_s += elapsed_s
            else:
                self.node_s += elapsed_s

    def begin(self, name: str, num_bytes: int) -> None:
        """Count a collective that begins, on buffers of `num_bytes`."""
        with self._guard:
            count = self.payload.setdefault(name, Count())
            count.calls += 1
            count.bytes += num_bytes

    def collective(self, name: str, num_bytes: int, traffic: Traffic) -> None:
        """Count a whole collective that is no call of a `Group`."""
        self.begin(name, num_bytes)
        self.add(traffic)

    def snapshot(self) -> TrafficCounter:
        """Return a copy of the current counts; this counter continues."""
        with self._guard:
            counts = {name: getattr(self, name) for name in _COUNTS}
            payload = {name: Count(c.calls, c.bytes) for name, c in self.payload.items()}
        return TrafficCounter(**counts, payload=payload)

    def __sub__(self, earlier: TrafficCounter) -> TrafficCounter:
        """Return the traffic since `earlier`, a snapshot of this one. Collectives without a call in
        between are left out."""
        nothing = Count()
        payload = {}
        for name, count in self.snapshot().payload.items():
            before = earlier.payload.get(name, nothing)
            if count.calls > before.calls:
                payload[name] = Count(count.calls - before.calls, count.bytes - before.bytes)
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS}
        return TrafficCounter(**counts, payload=payload)


_COUNTS = [each.name for each in fields(TrafficCounter) if each.init and each.name != "payload"]


def payload_bytes(call: Call, rank: int) -> int:
    """Return the bytes of the buffers that `rank` passes to a collective."""
    if call.dtype is None:
        return 0
    counts: Sequence[int | None] = call.counts or call.sent
    if call.name == "all_gather":
        counts = (call.counts[rank],)
    return call.dtype.itemsize * sum(count for count in counts if count is not None)


def scheme_traffic(
    collective: Collective, rank: int, size: int, nodes: Sequence[int] = ()
) -> Traffic:
    """Return the traffic of a collective that sends no messages of ours, by its scheme.

    nodes: the number of each rank's node; empty: all are on one. So in all formulas.
    """
    kind, inputs, outputs, _, _, root, *_ = collective
    sent, received = ([buffer.num_bytes for buffer in buffers] for buffers in (inputs, outputs))
    match kind:
        case "all_reduce" | "reduce":
            count, itemsize = outputs[0].count, outputs[0].dtype.itemsize
            return all_reduce_traffic(count, itemsize, rank, size, nodes, root)
        case "broadcast" if root is not None:
            return broadcast_traffic(received[0], rank, size, root, nodes)
        case "all_gather":
            return all_gather_traffic(received, rank, nodes)
        case "reduce_scatter":
            return reduce_scatter_traffic(sent, rank, nodes)
        case "all_to_all":
            return all_to_all_traffic(sent, received, rank, nodes)
        case "gather" if root is not None:
            parts = received if rank == root else sent * size
            return gather_traffic(parts, rank, root, nodes)
        case "scatter" if root is not None:
            parts = sent if rank == root else received * size
            return scatter_traffic(parts, rank, root, nodes)
        case _:
            return Traffic(0, 0, 0)


def all_reduce_traffic(
    count: int,
    itemsize: int,
    rank: int,
    size: int,
    nodes: Sequence[int] = (),
    root: int | None = None,
) -> Traffic:
    """Return the traffic of an all-reduce as reduce-scatter and all-gather of equal shares; of a
    reduce to `root`, whose second half is a gather.

    count: elements of the vector.
    """
    shares = [len(share_of(peer, size, count)) * itemsize for peer in range(size)]
    gathered = all_gather_traffic(shares, rank, nodes)
    if root is not None:
        gathered = gather_traffic(shares, rank, root, nodes)
    return sum_traffic([reduce_scatter_traffic(shares, rank, nodes), gathered])


def sharded_all_reduce_traffic(
    num_bytes: int, own_bytes: int, size: int, *, num_own: int = 1, num_terms: int | None = None
) -> Traffic:
    """Return the same of a vector cut into unequal shares, of which this rank owns `own_bytes`; on
    one node.

    num_own: terms of the sum that this rank has, of `num_terms`; None: one a rank.
    """
    others = (size if num_terms is None else num_terms) - num_own
    rest_bytes = num_bytes - own_bytes
    rounds = (num_own > 0 and rest_bytes > 0) + (own_bytes > 0)
    return Traffic(
        num_own * rest_bytes + (size - 1) * own_bytes,
        others * own_bytes + rest_bytes,
        rounds * (size - 1),
    )


def reduce_scatter_traffic(parts: Sequence[int], rank: int, nodes: Sequence[int] = ()) -> Traffic:
    """parts: bytes of each rank's part."""
    return all_to_all_traffic(parts, [parts[rank]] * len(parts), rank, nodes)


def all_gather_traffic(parts: Sequence[int], rank: int, nodes: Sequence[int] = ()) -> Traffic:
    """parts: bytes of each rank's part."""
    return all_to_all_traffic([parts[rank]] * len(parts), parts, rank, nodes)


def broadcast_traffic(
    num_bytes: int, rank: int, size: int, root: int, nodes: Sequence[int] = ()
) -> Traffic:
    """Return the traffic of a flat broadcast: all take it from the root (a tree forwards it)."""
    return scatter_traffic([num_bytes] * size, rank, root, nodes)


def all_to_all_traffic(
    sent: Sequence[int], received: Sequence[int], rank: int, nodes: Sequence[int] = ()
) -> Traffic:
    """Return the traffic of an all-to-all. sent, received: bytes to and from each rank."""
    others = _without(sent, rank)
    away = [peer for peer, node in enumerate(nodes) if node != nodes[rank]]
    return Traffic(
        sum(others),
        sum(_without(received, rank)),
        sum(map(bool, others)),
        sum(sent[peer] for peer in away),
        sum(received[peer] for peer in away),
    )


def gather_traffic(
    parts: Sequence[int], rank: int, root: int, nodes: Sequence[int] = ()
) -> Traffic:
    """parts: bytes of each rank's part; only those that this rank sends or receives count."""
    return all_to_all_traffic(*_to_root(parts, rank, root), rank, nodes)


def scatter_traffic(
    parts: Sequence[int], rank: int, root: int, nodes: Sequence[int] = ()
) -> Traffic:
    """parts: bytes of each rank's part; only those that this rank sends or receives count."""
    return all_to_all_traffic(*_to_root(parts, rank, root)[::-1], rank, nodes)


def _to_root(parts: Sequence[int], rank: int, root: int) -> tuple[list[int], list[int]]:
    """Return the bytes that `rank` gives each peer in a gather, and those that it takes."""
    nothing = [0] * len(parts)
    if rank == root:
        return nothing, list(parts)
    return [parts[rank] if peer == root else 0 for peer in range(len(parts))], nothing


def sum_traffic(moves: Sequence[Traffic]) -> Traffic:
    """Return the total traffic of several collectives."""
    return Traffic(*map(sum, zip(Traffic(0, 0, 0), *moves, strict=True)))


def _without(parts: Sequence[int], rank: int) -> list[int]:
    return [part for peer, part in enumerate(parts) if peer != rank]
