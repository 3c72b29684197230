"""All-reduce as one writes it first: rank 0 gathers everything, reduces it and hands it out.

It is what the other algorithms are compared with, and is taken only when it is asked for.
"""

from __future__ import annotations

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import Transport

ROOT = 0


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank.
    Cost:   p-1 messages of n elements into rank 0, then p-1 out of it, one after the other:
            p · latency + 2(p-1) · bytes/bandwidth, (p-1)·n elements of memory and all the
            reducing on rank 0. Every other algorithm divides both among the ranks.
    Order:  of the ranks.
    """
    if transport.rank != ROOT:
        transport.exchange([(buffer, ROOT)], [])
        transport.exchange([], [(buffer, ROOT)])
        return
    others = range(1, transport.size)
    terms = [transport.scratch(buffer.count, buffer.dtype) for _ in others]
    transport.exchange([], list(zip(terms, others, strict=True)))
    reduce_terms([buffer, *terms], buffer, op, divisor)
    for rank in others:
        transport.exchange([(buffer, rank)], [])
