"""Collectives around a ring: every rank sends to the next one and receives from the one before.

A part of the vector that starts on rank r + 1 takes in the values of every rank that it passes
and ends, complete, on rank r. Each part is reduced once and handed on unchanged, so all ranks get
the same bytes, and the order of its sum is r+1, r+2, … r, in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.comm.array_kernels import copy
from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import running, running_dtype, settle
from phalanx.comm.collectives.direct import shares_of
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import Transport, scratch


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank; n need not divide by p.
    Cost:   2(p-1) messages of ⌈n/p⌉ elements: 2(p-1)·latency + 2(p-1)/p · bytes/bandwidth.
    Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
    """
    shares = shares_of(buffer, transport.size)
    reduce_scatter(transport, shares[transport.rank], shares, op, divisor)
    all_gather(transport, shares, shares[transport.rank])


def reduce_scatter(
    transport: Transport,
    output: Buffer,
    parts: Sequence[Buffer],
    op: ReduceOp,
    divisor: float,
) -> None:
    """`output` becomes the reduction of parts[own rank] of all ranks.

    parts: one a rank, of any counts, the same list on every rank; only `output`, which may be
           parts[own rank], is written.
    Cost:  p-1 messages of one part: (p-1)·latency + (p-1)/p · bytes/bandwidth.
    """
    rank, size = transport.rank, transport.size
    dtype = running_dtype(output.dtype, op)
    total = running(parts[(rank - 1) % size], op)
    for step in range(1, size):
        own = running(parts[(rank - 1 - step) % size], op)
        received = scratch(own.count, dtype)
        transport.exchange([(total, (rank + 1) % size)], [(received, (rank - 1) % size)])
        reduce_terms([received, own], received, op)
        total = received
    settle(total, output, op, divisor)


def all_gather(transport: Transport, outputs: Sequence[Buffer], part: Buffer) -> None:
    """outputs[rank] becomes that rank's `part`.

    outputs: one a rank, of any counts, the same counts on every rank; outputs[own rank] may be
             `part` itself.
    Cost:    p-1 messages of one part: (p-1)·latency + (p-1)/p · bytes/bandwidth.
    """
    rank, size = transport.rank, transport.size
    copy(part, outputs[rank])
    for step in range(size - 1):
        sent, received = outputs[(rank - step) % size], outputs[(rank - step - 1) % size]
        transport.exchange([(sent, (rank + 1) % size)], [(received, (rank - 1) % size)])
