"""All-reduce around a ring: every rank sends to the next one and receives from the one before.

A share of the vector that starts on rank r + 1 takes in the values of every rank that it passes
and ends, complete, on rank r. Each share is reduced once and handed on unchanged, so all ranks get
the same bytes, and the order of its sum is r+1, r+2, … r, in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import accumulator_of, store_result
from phalanx.comm.collectives.pairwise import shares_of
from phalanx.comm.collectives.segments import receive_segments, segments_of
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import Transport


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank; n need not divide by p.
    Cost:   2(p-1) messages of ⌈n/p⌉ elements, in segments of which each is handed on as soon as it
            is reduced: 2(p-1)·latency + 2(p-1)/p · bytes/bandwidth.
    Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
    """
    rank, size = transport.rank, transport.size
    total = accumulator_of(transport, buffer, op)
    totals, results = shares_of(total, size), shares_of(buffer, size)
    if size > 1:
        _reduce_scatter(transport, totals, op)
    store_result(totals[rank], results[rank], op, divisor)
    _all_gather(transport, results)


def _reduce_scatter(transport: Transport, totals: Sequence[Buffer], op: ReduceOp) -> None:
    """totals[rank] becomes the reduction of that share; the other shares are left in between."""
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [transport.start([(s, after)], []) for s in segments_of(totals[before])]
    passing = [totals[(rank - step) % size] for step in range(2, size + 1)]
    num_handed_on = sum(len(segments_of(share)) for share in passing[:-1])
    for number, (term, segment) in enumerate(receive_segments(transport, passing, before)):
        reduce_terms([term, segment], segment, op)
        if number < num_handed_on:
            sends.append(transport.start([(segment, after)], []))
    for send in sends:
        send.finish()


def _all_gather(transport: Transport, shares: Sequence[Buffer]) -> None:
    """shares[rank] of every rank comes to all others."""
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    taken = [shares[(rank - step) % size] for step in range(1, size)]
    receives = [transport.start([], [(share, before)]) for share in taken]
    sends = []
    for step, share in enumerate([shares[rank], *taken][: size - 1]):
        if step > 0:
            receives[step - 1].finish()
        sends.append(transport.start([(share, after)], []))
    for exchange in (*receives[-1:], *sends):
        exchange.finish()
