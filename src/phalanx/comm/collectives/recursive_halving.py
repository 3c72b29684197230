"""All-reduce by recursive halving and doubling: few rounds and little traffic.

Ranks of a power of two q exchange halves of the vector with a partner at distance q/2, halves of
their half with one at q/4, and so on, until each has reduced one q-th; the way back hands these
out. Where p is no power of two, the first 2(p-q) ranks work in pairs: the even one gives its
vector to the odd one before, and gets the result after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.accumulate import accumulator_of, store_result
from phalanx.comm.collectives.pairwise import shares_of
from phalanx.comm.collectives.segments import receive_segments, segments_of
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.kernels import reduce_terms
from phalanx.comm.transport import Transport


@dataclass(frozen=True)
class HalvingStep:
    """One exchange on the way down. The way up swaps `kept` and `given`."""

    partner: int
    kept: range
    """Shares that this rank goes on with."""
    given: range
    """Shares that the partner goes on with."""


def halving_steps(position: int, size: int) -> list[HalvingStep]:
    """Return the exchanges of the rank at `position` of `size`, a power of two.

    After the last step the rank holds the share `position`.
    """
    steps = []
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        lower, upper = range(low, middle), range(middle, high)
        distance = middle - low
        if position < middle:
            steps.append(HalvingStep(position + distance, lower, upper))
            high = middle
        else:
            steps.append(HalvingStep(position - distance, upper, lower))
            low = middle
    return steps


def workers_of(size: int) -> list[int]:
    """The ranks that take part in the halving, a power of two: of a pair, the odd one."""
    power = 1 << (size.bit_length() - 1)
    pairs = size - power
    return [2 * i + 1 for i in range(pairs)] + list(range(2 * pairs, size))


def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
    """Reduce `buffer` over all ranks, in place; every rank ends with the same bytes.

    buffer: (n,), the same n and dtype on every rank; n and p are arbitrary.
    Cost:   2log₂p rounds: 2log₂p · latency + 2(p-1)/p · bytes/bandwidth; where p is no power of
            two, 2 more rounds of n elements.
    Source: Rabenseifner 2004, doi:10.1007/978-3-540-24685-5_1; Thakur, Rabenseifner & Gropp 2005,
            doi:10.1177/1094342005051521.
    """
    rank = transport.rank
    workers = workers_of(transport.size)
    total = accumulator_of(transport, buffer, op)
    if rank not in workers:
        transport.exchange([(segment, rank + 1) for segment in segments_of(total)], [])
        transport.exchange([], [(buffer, rank + 1)])
        return
    is_paired = rank > 0 and rank - 1 not in workers
    if is_paired:
        for term, segment in receive_segments(transport, [total], rank - 1):
            reduce_terms([term, segment], segment, op)
    _halve_and_double(transport, workers, total, buffer, op, divisor)
    if is_paired:
        transport.exchange([(buffer, rank - 1)], [])


def num_rounds_of(size: int) -> int:
    """Return the rounds of `reduce_in_rounds`."""
    power = len(workers_of(size))
    return 2 * (power.bit_length() - 1 + (size > power))


def reduce_in_rounds(
    transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float
) -> Iterator[None]:
    """Reduce `buffer` as `all_reduce`; yields while the messages of each round travel, which go
    without segments. On every rank as often, so that rounds of several vectors can overlap."""
    rank, workers = transport.rank, workers_of(transport.size)
    is_paired = rank > 0 and rank - 1 not in workers
    total = accumulator_of(transport, buffer, op)
    if rank not in workers:
        sending = transport.start([(total, rank + 1)], [])
        yield
        sending.finish()
        receiving = transport.start([], [(buffer, rank + 1)])
        yield from [None] * (num_rounds_of(transport.size) - 1)
        receiving.finish()
        return
    position, place = workers.index(rank), transport.scratch(total.count, total.dtype)
    if is_paired:
        receiving = transport.start([], [(place, rank - 1)])
        yield
        receiving.finish()
        reduce_terms([place, total], total, op)
    elif len(workers) < transport.size:
        yield
    totals, results = shares_of(total, len(workers)), shares_of(buffer, len(workers))
    steps = halving_steps(position, len(workers))
    for step in steps:
        given, own = _together(totals, step.given), _together(totals, step.kept)
        term, partner = place.part(0, own.count), workers[step.partner]
        exchange = transport.start([(given, partner)], [(term, partner)])
        yield
        exchange.finish()
        reduce_terms([own, term] if position < step.partner else [term, own], own, op)
    store_result(totals[position], results[position], op, divisor)
    for step in reversed(steps):
        own, given = _together(results, step.kept), _together(results, step.given)
        partner = workers[step.partner]
        exchange = transport.start([(own, partner)], [(given, partner)])
        yield
        exchange.finish()
    if is_paired:
        sending = transport.start([(buffer, rank - 1)], [])
        yield
        sending.finish()
    elif len(workers) < transport.size:
        yield


def _halve_and_double(
    transport: Transport,
    workers: Sequence[int],
    total: Buffer,
    result: Buffer,
    op: ReduceOp,
    divisor: float,
) -> None:
    position = workers.index(transport.rank)
    totals, results = shares_of(total, len(workers)), shares_of(result, len(workers))
    steps = halving_steps(position, len(workers))
    for step in steps:
        partner = workers[step.partner]
        given, kept = _together(totals, step.given), _together(totals, step.kept)
        sending = transport.start([(segment, partner) for segment in segments_of(given)], [])
        for term, own in receive_segments(transport, [kept], partner):
            # The lower half of the ranks comes first in the sum, on both sides.
            reduce_terms([own, term] if position < step.partner else [term, own], own, op)
        sending.finish()
    store_result(totals[position], results[position], op, divisor)
    for step in reversed(steps):
        partner = workers[step.partner]
        kept, given = _together(results, step.kept), _together(results, step.given)
        transport.exchange([(kept, partner)], [(given, partner)])


def _together(shares: Sequence[Buffer], numbers: range) -> Buffer:
    """Consecutive shares as one buffer."""
    chosen = shares[numbers.start : numbers.stop]
    count = sum(share.count for share in chosen)
    return Buffer(chosen[0].address, count, chosen[0].dtype, chosen[0].owner)
