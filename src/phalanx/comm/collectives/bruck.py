"""Collectives of few bytes among many ranks: ⌈log₂ p⌉ rounds, and as many peers each way.

Whole parts travel, each in at most ⌈log₂ p⌉ messages, and are reduced where they end, in the order
of the ranks: the same bits as by `pairwise`. Long parts of a collective whose ranks do not know
each other's counts go straight to where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise as neighbours
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives import tree
from phalanx.comm.collectives.cells import Cells
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.layout import starts_of
from phalanx.comm.transport import Transport


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place: every rank gathers all vectors and reduces them.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   as `gathered` of n elements a rank; p·n elements reduced by each rank.
    """
    terms = gathered(transport, buffer, [buffer.count] * transport.size)
    transport.reduce_terms(terms, buffer, op, divisor)


def all_gather(transport: Transport, outputs: Sequence[Buffer], part: Buffer) -> None:
    """outputs[rank] becomes that rank's `part`. Arguments: as `pairwise.all_gather`.

    Cost: as `gathered`, and p copies.
    """
    parts = gathered(transport, part, [output.count for output in outputs])
    for source, output in zip(parts, outputs, strict=True):
        transport.copy(source, output)


def gathered(transport: Transport, part: Buffer, counts: Sequence[int]) -> list[Buffer]:
    """Return the parts of all ranks, in scratch memory. counts: their elements.

    Cost:   ⌈log₂ p⌉ messages of 1, 2, 4 … parts: ⌈log₂ p⌉ · latency + (p-1)/p · bytes/bandwidth.
    Source: Bruck, Ho, Kipnis, Upfal & Weathersby 1997, doi:10.1109/71.642949.
    """
    rank, size = transport.rank, transport.size
    starts = starts_of([*counts[rank:], *counts[:rank]])  # first the part of this rank
    memory = transport.scratch(starts[-1], part.dtype)
    transport.copy(part, memory.part(0, part.count))
    held = 1
    while held < size:
        taken = min(held, size - held)
        given = memory.part(0, starts[taken])
        place = memory.part(starts[held], starts[held + taken])
        transport.exchange(
            [(given, (rank - held) % size)] if given.count else [],
            [(place, (rank + held) % size)] if place.count else [],
        )
        held += taken
    parts = [memory.part(start, stop) for start, stop in neighbours(starts)]
    return [*parts[size - rank :], *parts[: size - rank]]


def all_to_all(transport: Transport, outputs: Sequence[Buffer], parts: Sequence[Buffer]) -> None:
    """outputs[peer] becomes what `peer` has at parts[own rank].

    Cost: as `turn` of a cell a peer; p-1 messages more where all parts are long.
    """
    rank, size = transport.rank, transport.size
    cells = Cells.of_unknown(transport, size)
    for peer, part in enumerate(parts):
        cells.put((peer - rank) % size, part)
    turn(transport, cells.rows)
    for peer, output in enumerate(outputs):
        cells.take((rank - peer) % size, output, peer)
    transport.exchange(cells.long(parts, rank), cells.long(outputs, rank))
    transport.copy(parts[rank], outputs[rank])


def reduce_scatter(
    transport: Transport,
    output: Buffer,
    parts: Sequence[Buffer],
    op: ReduceOp,
    divisor: float,
) -> None:
    """`output` becomes the reduction of parts[own rank] of all ranks, in the order of the ranks.

    Arguments: as `pairwise.reduce_scatter`.
    Cost: as `turn` of a cell a rank, as long as the longest part.
    """
    rank, size = transport.rank, transport.size
    cells = Cells(transport, size, max(part.num_bytes for part in parts))
    for peer, part in enumerate(parts):
        cells.put((peer - rank) % size, part)
    turn(transport, cells.rows)
    terms = [cells.part((rank - peer) % size, output, peer) for peer in range(size)]
    transport.reduce_terms(terms, output, op, divisor)


def turn(transport: Transport, rows: NDArray[Any]) -> None:
    """Exchange `rows`: in the place of row j, which is for rank + j, comes that of rank - j.

    rows: (p, n) bytes, the same n on every rank.
    Cost:   ⌈log₂ p⌉ messages of p/2 rows: ⌈log₂ p⌉ · (latency + p·n/2/bandwidth).
    Source: as `gathered`.
    """
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        moving = np.flatnonzero(np.arange(size) & distance)
        given = rows[moving].reshape(-1)
        place = np.empty_like(given)
        transport.exchange(
            [(Buffer.of(given), (rank + distance) % size)],
            [(Buffer.of(place), (rank - distance) % size)],
        )
        rows[moving] = place.reshape(len(moving), -1)
        distance *= 2


def reduce(
    transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float, *, root: int
) -> None:
    """Reduce `buffer` over all ranks, into that of `root`, in the order of the ranks.

    Cost: as `tree.gather_rows` of the vectors; p·n elements reduced by `root`.
    """
    size, position = transport.size, tree.position_of(transport, root)
    cells = Cells(transport, tree.subtree_size(position, size), buffer.num_bytes)
    cells.put(0, buffer)
    tree.gather_rows(transport, cells.memory, root=root)
    if transport.rank == root:
        terms = [cells.part((peer - root) % size, buffer, peer) for peer in range(size)]
        transport.reduce_terms(terms, buffer, op, divisor)


def gather(transport: Transport, outputs: Sequence[Buffer], part: Buffer, *, root: int) -> None:
    """outputs[rank] of `root` becomes that rank's `part`.

    Cost: as `tree.gather_rows` of cells; long parts in a message each, to one rank.
    """
    size, position = transport.size, tree.position_of(transport, root)
    cells = Cells.of_unknown(transport, tree.subtree_size(position, size))
    cells.put(0, part)
    tree.gather_rows(transport, cells.memory, root=root)
    if transport.rank != root:
        transport.exchange([(part, root)] if cells.is_long(part) else [], [])
        return
    for peer, output in enumerate(outputs):
        cells.take((peer - root) % size, output, peer)
    transport.exchange([], cells.long(outputs, root))
    transport.copy(part, outputs[root])


def scatter(transport: Transport, output: Buffer, parts: Sequence[Buffer], *, root: int) -> None:
    """`output` becomes what `root` has at parts[own rank].

    Cost: as `tree.scatter_rows` of cells; long parts in a message each, from one rank.
    """
    size, position = transport.size, tree.position_of(transport, root)
    cells = Cells.of_unknown(transport, tree.subtree_size(position, size))
    for peer, part in enumerate(parts):
        cells.put((peer - root) % size, part)
    tree.scatter_rows(transport, cells.memory, root=root)
    if transport.rank != root:
        cells.take(0, output, root)
        transport.exchange([], [(output, root)] if cells.is_long(output) else [])
        return
    transport.exchange(cells.long(parts, root), [])
    transport.copy(parts[root], output)
