"""Collectives along a binomial tree: few rounds, each rank talks to few others.

Rank v (counted from the root) has the parent v - 2ᵏ, where 2ᵏ is its lowest binary digit, and the
children v + 1, v + 2, v + 4 … below that digit.
"""

from __future__ import annotations

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import running_copy, settle
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import Transport, scratch


def parent_of(position: int) -> int | None:
    """Of a position in the tree, whose root is 0."""
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
    Cost:   ⌈log₂ p⌉ rounds of n elements: ⌈log₂ p⌉ · (latency + bytes/bandwidth).
    Source: Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521.
    """
    size = transport.size
    position = (transport.rank - root) % size
    parent = parent_of(position)
    if parent is not None:
        transport.exchange([], [(buffer, (parent + root) % size)])
    # The farthest child has the largest subtree, so it is served first.
    children = reversed(children_of(position, size))
    transport.exchange([(buffer, (child + root) % size) for child in children], [])


def reduce(
    transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float, *, root: int
) -> None:
    """Reduce `buffer` over all ranks, into that of `root`; elsewhere it keeps its values.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   ⌈log₂ p⌉ rounds of n elements: ⌈log₂ p⌉ · (latency + bytes/bandwidth + reducing).
    Order:  of the tree: ((0 op 1) op (2 op 3)) op …, counted from the root.
    """
    size = transport.size
    position = (transport.rank - root) % size
    total = running_copy(buffer, op)
    term = scratch(total.count, total.dtype)
    for child in children_of(position, size):
        transport.exchange([], [(term, (child + root) % size)])
        reduce_terms([total, term], total, op)
    parent = parent_of(position)
    if parent is not None:
        transport.exchange([(total, (parent + root) % size)], [])
        return
    settle(total, buffer, op, divisor)


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place: to rank 0 and from there to all.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   2⌈log₂ p⌉ rounds of n elements: 2⌈log₂ p⌉ · (latency + bytes/bandwidth).
    """
    reduce(transport, buffer, op, divisor, root=0)
    broadcast(transport, buffer, root=0)
