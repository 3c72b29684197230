"""Collectives along a binomial tree: few rounds, each rank talks to few others.

Rank v (counted from the root) has the parent v - 2ᵏ, where 2ᵏ is its lowest binary digit, and the
children v + 1, v + 2, v + 4 … below that digit. Vectors go in segments, one behind the other: while
a rank waits for the next one, others have the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import accumulator_of, store_result
from phalanx.comm.collectives.segments import receive_segments, segments_of
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import PendingExchange, Transport


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


def broadcast(transport: Transport, buffer: Buffer, *, root: int) -> None:
    """`buffer` of every rank becomes that of `root`.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   ⌈log₂ p⌉ rounds of n elements, of which segments overlap: ⌈log₂ p⌉ · latency + the
            time to send ⌈log₂ p⌉ · n elements, which the root has to do.
    Source: Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521.
    """
    size = transport.size
    position = (transport.rank - root) % size
    parent = parent_of(position)
    # The farthest child has the largest subtree, so it is served first.
    children = [(child + root) % size for child in reversed(children_of(position, size))]
    segments = segments_of(buffer)
    receives: list[PendingExchange] = []
    if parent is not None:
        source = (parent + root) % size
        receives = [transport.start([], [(segment, source)]) for segment in segments]
    sends = []
    for number, segment in enumerate(segments):
        if receives:
            receives[number].finish()
        sends.append(transport.start([(segment, child) for child in children], []))
    for send in sends:
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
