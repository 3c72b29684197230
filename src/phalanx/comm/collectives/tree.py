"""Collectives along a binomial tree: few rounds, each rank exchanges messages with few peers.

Rank v (counted from the root) has the parent v - 2ᵏ, where 2ᵏ is its lowest binary digit, and the
children v + 1, v + 2, v + 4 … below that digit. Vectors go in segments, one behind the other: while
a rank waits for the next one, others have the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import (
    accumulator_dtype,
    accumulator_of,
    load_term,
    store_result,
)
from phalanx.comm.collectives.segments import receive_segments, segments_of
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.select import FEW_NODES
from phalanx.comm.transport import PendingExchange, Transport

NUM_PLACES = 4  # segments of sums that a rank sends up while it adds up the next


def parent_of(position: int) -> int | None:
    """Return the parent of a position in the tree, whose root is 0."""
    return position & (position - 1) if position else None


def children_of(position: int, size: int) -> list[int]:
    """Nearest first; each child's subtree is the positions up to the next child's."""
    children = []
    distance = 1
    while position + distance < size and not position & distance:
        children.append(position + distance)
        distance *= 2
    return children


@lru_cache(maxsize=64)
def place_in_tree(
    nodes: tuple[int, ...], root: int, rank: int, num_segments: int
) -> tuple[int | None, list[int]]:
    """Return the parent and the children of `rank`, the child with the largest subtree first.

    A vector crosses the network once for each node, between the first ranks of the nodes, or
    `root`; from these it goes on within the node. More than FEW_NODES are a chain where there are
    many segments: each sends the vector once. Else they are a binomial tree, in which the node of
    `root` does so ⌈log₂ m⌉ times.

    nodes: the number of each rank's node.
    """
    node = nodes[rank]
    order = list(dict.fromkeys(nodes))
    num_nodes, first = len(order), order.index(nodes[root])

    def head(position: int) -> int:
        there = order[(position + first) % num_nodes]
        return root if there == nodes[root] else nodes.index(there)

    place = (order.index(node) - first) % num_nodes
    local = [peer for peer, other in enumerate(nodes) if other == node]
    start = local.index(head(place))
    position = (local.index(rank) - start) % len(local)
    below = [local[(child + start) % len(local)] for child in children_of(position, len(local))]
    above = parent_of(position)
    if above is not None:
        return local[(above + start) % len(local)], below[::-1]
    num_steps = num_nodes - 1 + num_segments
    if num_nodes > FEW_NODES and num_steps < num_segments * (num_nodes - 1).bit_length():
        heads = [place + 1] if place + 1 < num_nodes else []
        above = place - 1 if place else None
    else:
        heads, above = children_of(place, num_nodes), parent_of(place)
    children = [head(child) for child in heads[::-1]]
    return None if above is None else head(above), [*children, *below[::-1]]


def position_of(transport: Transport, root: int) -> int:
    """Return the position of this rank in the tree of `root`."""
    return (transport.rank - root) % transport.size


def subtree_size(position: int, size: int) -> int:
    """Return the number of positions from this one on that are below it, itself included."""
    return min(position & -position or size, size - position)


def gather_rows(transport: Transport, rows: Buffer, *, root: int) -> None:
    """Fill `rows` with those of the subtree of this rank, by position: on `root` those of all.

    rows: one a rank of the subtree, of as many elements on every rank; the own one is the first.
    Cost: ⌈log₂ p⌉ messages into one rank: ⌈log₂ p⌉ · latency + bytes of all/bandwidth.
    """
    parent, children = _rows_of_subtrees(transport, rows, root)
    transport.exchange([], children)
    if parent is not None:
        transport.exchange([(rows, parent)], [])


def scatter_rows(transport: Transport, rows: Buffer, *, root: int) -> None:
    """Fill `rows` with those of `root` for the subtree of this rank. Arguments, cost: the same."""
    parent, children = _rows_of_subtrees(transport, rows, root)
    if parent is not None:
        transport.exchange([], [(rows, parent)])
    transport.exchange(children[::-1], [])


def _rows_of_subtrees(
    transport: Transport, rows: Buffer, root: int
) -> tuple[int | None, list[tuple[Buffer, int]]]:
    """Return the parent, and the children with the rows of their subtrees."""
    size, position = transport.size, position_of(transport, root)
    parent, children = parent_of(position), []
    row = rows.count // subtree_size(position, size)
    for child in children_of(position, size):
        start = (child - position) * row
        part = rows.part(start, start + subtree_size(child, size) * row)
        children.append((part, (child + root) % size))
    return None if parent is None else (parent + root) % size, children


def broadcast(
    transport: Transport, buffer: Buffer, *, root: int, nodes: Sequence[int] = ()
) -> None:
    """`buffer` of every rank becomes that of `root`.

    buffer: (n,), the same n and dtype on every rank. nodes: the number of each rank's node; empty:
            all are on one.
    Cost:   ⌈log₂ p⌉ rounds of n elements, of which segments overlap: ⌈log₂ p⌉ · latency + the
            time to send ⌈log₂ p⌉ · n elements, which the root has to do; of s segments on m nodes,
            more than FEW_NODES, where m - 1 + s < s·⌈log₂ m⌉: m - 1 rounds, and the root sends n to
            other nodes.
    Source: Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521.
    """
    segments = segments_of(buffer)
    nodes = tuple(nodes) or (0,) * transport.size
    parent, children = place_in_tree(nodes, root, transport.rank, len(segments))
    receives: list[PendingExchange] = []
    if parent is not None:
        receives = [transport.start([], [(segment, parent)]) for segment in segments]
    sends = []
    for number, segment in enumerate(segments):
        if receives:
            receives[number].finish()
        sends.append(transport.start([(segment, child) for child in children], []))
    for send in sends:
        send.finish()


def reduce(
    transport: Transport,
    buffer: Buffer,
    op: ReduceOp,
    divisor: float,
    *,
    root: int,
    nodes: Sequence[int] = (),
) -> None:
    """Reduce `buffer` over all ranks, into that of `root`; elsewhere it keeps its values.

    buffer: (n,), the same n and dtype on every rank. nodes: as of `broadcast`.
    Cost:   the same the other way: `root` receives what it would send there; memory for four
            segments, and three for each child.
    Order:  of the tree: a rank, then its children, those on its node first.
    """
    dtype = accumulator_dtype(buffer.dtype, op)
    own = totals = segments_of(buffer, itemsize=dtype.itemsize)
    nodes = tuple(nodes) or (0,) * transport.size
    parent, children = place_in_tree(nodes, root, transport.rank, len(own))
    if dtype != buffer.dtype or (children and parent is not None):
        longest = max((segment.count for segment in own), default=0)
        places = [transport.scratch(longest, dtype) for _ in own[:NUM_PLACES]]
        totals = [places[n % NUM_PLACES].part(0, own[n].count) for n in range(len(own))]
    terms = [receive_segments(transport, totals, child) for child in reversed(children)]
    sends: list[PendingExchange] = []
    for number, (segment, total) in enumerate(zip(own, totals, strict=True)):
        if parent is not None and number >= NUM_PLACES:
            sends[number - NUM_PLACES].finish()
        load_term(segment, total)
        _add(terms, total, op)
        if parent is None:
            store_result(total, segment, op, divisor)
        else:
            sends.append(transport.start([(total, parent)], []))
    for send in sends[-NUM_PLACES:]:
        send.finish()


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place: to rank 0 and from there to all.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   2⌈log₂ p⌉ rounds of n elements, of which segments overlap, also those on their way up
            with those on their way down: 2⌈log₂ p⌉ · latency + the time in which rank 0 receives
            and sends ⌈log₂ p⌉ · n elements.
    Order:  of the tree: ((0 op 1) op (2 op 3)) op ….
    """
    total = accumulator_of(transport, buffer, op)
    itemsize = total.dtype.itemsize
    totals, results = segments_of(total), segments_of(buffer, itemsize=itemsize)
    parent = parent_of(transport.rank)
    if parent is None:
        _reduce_and_send_down(transport, totals, results, op, divisor)
    else:
        _send_up_and_forward_down(transport, totals, results, op, parent)


def _reduce_and_send_down(
    transport: Transport,
    totals: Sequence[Buffer],
    results: Sequence[Buffer],
    op: ReduceOp,
    divisor: float,
) -> None:
    """Run the root's side: reduce every segment and send the result down."""
    children = children_of(transport.rank, transport.size)
    terms = [receive_segments(transport, totals, child) for child in children]
    sends = []
    for total, result in zip(totals, results, strict=True):
        _add(terms, total, op)
        store_result(total, result, op, divisor)
        sends.append(transport.start([(result, child) for child in reversed(children)], []))
    for send in sends:
        send.finish()


def _send_up_and_forward_down(
    transport: Transport,
    totals: Sequence[Buffer],
    results: Sequence[Buffer],
    op: ReduceOp,
    parent: int,
) -> None:
    """Run the side of all other ranks: send segments up, receive results and forward them down.

    The result of a segment is received `lag` segments after it was sent: so many are in flight.
    """
    children = children_of(transport.rank, transport.size)
    terms = [receive_segments(transport, totals, child) for child in children]
    lag = 2 * (transport.size - 1).bit_length()
    ups: list[PendingExchange] = []
    downs = []
    for number in range(len(totals) + lag):
        if number < len(totals):
            _add(terms, totals[number], op)
            ups.append(transport.start([(totals[number], parent)], []))
        if 0 <= number - lag < len(results):
            ups[number - lag].finish()  # its memory may be that of the result
            result = results[number - lag]
            transport.exchange([], [(result, parent)])
            downs.append(transport.start([(result, child) for child in reversed(children)], []))
    for down in downs:
        down.finish()


def _add(terms: Sequence[Iterator[tuple[Buffer, Buffer]]], total: Buffer, op: ReduceOp) -> None:
    """Add the children's terms of a segment to `total`, in the order of the children."""
    for arrivals in terms:
        term, _ = next(arrivals)
        reduce_terms([total, term], total, op)
