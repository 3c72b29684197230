"""Pairwise exchange: collectives in one or two rounds, every rank with every peer at once.

Each element is reduced by one owner, in rank order: the same bits as a loop over the ranks would
give, on every rank and in every run. `PHALANX_ALL_REDUCE` calls this `direct`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.layout import chunks, share_of
from phalanx.comm.transport import PendingExchange, Transport

SEGMENT_BYTES = 64 * 2**20  # bounds the memory that a long vector needs beside itself


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place: every rank reduces its share and hands it out.

    buffer: (n,), the same n and dtype on every rank; n need not divide by p.
    Cost:   2 rounds of p-1 messages of n/p elements: 2·latency + 2(p-1)/p · bytes/bandwidth on a
            network where every pair has its own way, and min(n, SEGMENT_BYTES) bytes of memory.
    Source: the "pairwise exchange" of Thakur, Rabenseifner & Gropp 2005,
            doi:10.1177/1094342005051521.
    """
    for segment in chunks(buffer.count, max(1, SEGMENT_BYTES // buffer.dtype.itemsize)):
        shares = shares_of(buffer.part(segment.start, segment.stop), transport.size)
        reduce_scatter(transport, shares[transport.rank], shares, op, divisor)
        all_gather(transport, shares, shares[transport.rank])


def all_to_all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place: every rank gets all vectors and reduces them.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   1 round of p-1 messages of n elements: latency + (p-1) · bytes/bandwidth, p·n elements
            reduced by each rank.
    """
    arriving = [transport.scratch(buffer.count, buffer.dtype) for _ in range(transport.size - 1)]
    for _ in reduce_in_one_round(transport, buffer, arriving, op, divisor):
        """Nothing else is to be done while the messages travel."""


def reduce_in_one_round(
    transport: Transport, buffer: Buffer, arriving: Sequence[Buffer], op: ReduceOp, divisor: float
) -> Iterator[None]:
    """Reduce `buffer` as `all_to_all_reduce`; yields while the messages travel.

    arriving: memory for each peer's vector.
    """
    terms = _terms(transport, buffer, arriving)
    exchange = begin_all_gather(transport, terms, buffer)
    yield
    exchange.finish()
    transport.reduce_terms(terms, buffer, op, divisor)


def reduce_in_two_rounds(
    transport: Transport, buffer: Buffer, arriving: Sequence[Buffer], op: ReduceOp, divisor: float
) -> Iterator[None]:
    """Reduce `buffer` as `all_reduce`; yields while the messages of each round travel.

    arriving: memory for a share from each peer.
    """
    shares = shares_of(buffer, transport.size)
    own = shares[transport.rank]
    exchange, terms = begin_reduce_scatter(transport, shares, arriving)
    yield
    exchange.finish()
    transport.reduce_terms(terms, own, op, divisor)
    exchange = begin_all_gather(transport, shares, own)
    yield
    exchange.finish()


def reduce(
    transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float, *, root: int
) -> None:
    """Reduce `buffer` over all ranks, into that of `root`; elsewhere it keeps its values.

    Cost: p-1 messages of n elements into one rank: latency + (p-1) · bytes/bandwidth, and
          min((p-1)·n, SEGMENT_BYTES) bytes of memory there.
    """
    peers, itemsize = transport.size - 1, buffer.dtype.itemsize
    largest = min(buffer.count, max(1, SEGMENT_BYTES // itemsize // max(1, peers)))
    arriving = []
    if transport.rank == root:
        arriving = [transport.scratch(largest, buffer.dtype) for _ in range(peers)]
    for segment in chunks(buffer.count, max(1, largest)):
        part = buffer.part(segment.start, segment.stop)
        if transport.rank != root:
            transport.exchange([(part, root)], [])
            continue
        terms = _terms(transport, part, arriving)
        transport.exchange([], _with_peers(transport, terms))
        transport.reduce_terms(terms, part, op, divisor)


def reduce_scatter(
    transport: Transport,
    output: Buffer,
    parts: Sequence[Buffer],
    op: ReduceOp,
    divisor: float,
) -> None:
    """`output` becomes the reduction of parts[own rank] of all ranks, in the order of the ranks.

    parts: one a rank, of any counts, the same list on every rank; only `output`, which may be
           parts[own rank], is written.
    Cost:  p-1 messages at the same time: latency + (p-1)/p · bytes/bandwidth.
    """
    arriving = [transport.scratch(output.count, output.dtype) for _ in range(transport.size - 1)]
    exchange, terms = begin_reduce_scatter(transport, parts, arriving)
    exchange.finish()
    transport.reduce_terms(terms, output, op, divisor)


def all_gather(transport: Transport, outputs: Sequence[Buffer], part: Buffer) -> None:
    """outputs[rank] becomes that rank's `part`.

    outputs: one a rank, of any counts, the same counts on every rank; outputs[own rank] may be
             `part` itself.
    Cost:    p-1 messages at the same time: latency + (p-1)/p · bytes/bandwidth.
    """
    begin_all_gather(transport, outputs, part).finish()
    transport.copy(part, outputs[transport.rank])


def all_to_all(transport: Transport, outputs: Sequence[Buffer], parts: Sequence[Buffer]) -> None:
    """outputs[peer] becomes what `peer` has at parts[own rank].

    Cost: p-1 messages at the same time: latency + bytes/bandwidth.
    """
    transport.exchange(_with_peers(transport, parts), _with_peers(transport, outputs))
    transport.copy(parts[transport.rank], outputs[transport.rank])


def gather(transport: Transport, outputs: Sequence[Buffer], part: Buffer, *, root: int) -> None:
    """outputs[rank] of `root` becomes that rank's `part`.

    Cost: p-1 messages into one rank: latency + bytes of all/bandwidth.
    """
    if transport.rank != root:
        transport.exchange([(part, root)], [])
        return
    transport.exchange([], _with_peers(transport, outputs))
    transport.copy(part, outputs[root])


def scatter(transport: Transport, output: Buffer, parts: Sequence[Buffer], *, root: int) -> None:
    """`output` becomes what `root` has at parts[own rank].

    Cost: p-1 messages out of one rank: latency + bytes of all/bandwidth.
    """
    if transport.rank != root:
        transport.exchange([], [(output, root)])
        return
    transport.exchange(_with_peers(transport, parts), [])
    transport.copy(parts[root], output)


def shares_of(buffer: Buffer, size: int) -> list[Buffer]:
    """`buffer` cut into a share a rank."""
    shares = (share_of(rank, size, buffer.count) for rank in range(size))
    return [buffer.part(share.start, share.stop) for share in shares]


def begin_reduce_scatter(
    transport: Transport, parts: Sequence[Buffer], arriving: Sequence[Buffer]
) -> tuple[PendingExchange, list[Buffer]]:
    """Start the messages; return them and the terms of this rank's sum once they have arrived.

    Empty parts need no message: every rank knows that they are empty.
    arriving: memory for what each peer sends, no shorter than parts[own rank].
    """
    own = parts[transport.rank]
    terms = _terms(transport, own, arriving)
    sends = [(part, rank) for part, rank in _with_peers(transport, parts) if part.count]
    receives = _with_peers(transport, terms) if own.count else []
    return transport.start(sends, receives), terms


def begin_all_gather(
    transport: Transport, outputs: Sequence[Buffer], part: Buffer
) -> PendingExchange:
    """Start the messages that bring every rank's `part`."""
    own = transport.rank
    receives = [(output, rank) for output, rank in _with_peers(transport, outputs) if output.count]
    sends = [(part, rank) for rank in range(transport.size) if rank != own and part.count]
    return transport.start(sends, receives)


def _terms(transport: Transport, own: Buffer, arriving: Sequence[Buffer]) -> list[Buffer]:
    """Return a term a rank, in their order: `own`, and what the peers send into `arriving`."""
    memory = iter(arriving)
    return [
        own if rank == transport.rank else next(memory).part(0, own.count)
        for rank in range(transport.size)
    ]


def _with_peers(transport: Transport, buffers: Sequence[Buffer]) -> list[tuple[Buffer, int]]:
    """Pair each peer with its buffer, starting after this rank, so that not all start with
    rank 0."""
    ranks = [(transport.rank + i) % transport.size for i in range(1, transport.size)]
    return [(buffers[rank], rank) for rank in ranks]
