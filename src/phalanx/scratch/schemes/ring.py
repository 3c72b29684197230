"""Data parallel with the all-reduce written out: a ring, in which every rank talks to its two
neighbours only, and sends less than twice the vector however many ranks there are."""

from __future__ import annotations

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.scratch.arrays import Array
from phalanx.scratch.schemes.library import Library


class Ring(Library):
    def combine(self) -> None:
        ring_all_reduce(self.network.gradients, self.group)


def ring_all_reduce(vector: Array, group: Group) -> None:
    """Sum `vector` over all ranks, in place; every rank ends with the same bits.

    vector: (n,), contiguous, the same n and dtype on every rank; n need not divide by the ranks.
    Cost:   2(p-1) messages of about n/p elements: 2(p-1)·latency + 2(p-1)/p · bytes/bandwidth.
    Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.

    The vector is cut into p chunks. With three ranks, of which each begins with its own values of
    the chunks A, B and C, and rank r sends to rank r+1:

                      rank 0             rank 1             rank 2
        begin         A     B     C      A     B     C      A     B     C
        1st round     sends A            sends B            sends C
                      A     B     C₂₀    A₀₁   B     C      A     B₁₂   C
        2nd round     sends C            sends A            sends B
                      A     B₁₂₀  C₂₀    A₀₁   B     C₂₀₁   A₀₁₂  B₁₂   C

    Every chunk now is complete somewhere: rank r has all of chunk r+1. That was the
    *reduce-scatter*. Two more rounds hand the complete chunks around: the *all-gather*.
    """
    rank, size = group.rank, group.size
    shares = [share_of(owner, size, len(vector)) for owner in range(size)]
    chunks = [vector[share.start : share.stop] for share in shares]
    arriving = np.empty(max(map(len, chunks)), vector.dtype)
    for turn in range(size - 1):
        sent, summed = chunks[(rank - turn) % size], chunks[(rank - turn - 1) % size]
        term = arriving[: len(summed)]
        send_receive(sent, term, group)
        summed += term
    for turn in range(size - 1):
        sent, replaced = chunks[(rank + 1 - turn) % size], chunks[(rank - turn) % size]
        send_receive(sent, replaced, group)


def send_receive(sent: Array, received: Array, group: Group) -> None:
    """Send to the right while receiving from the left. Nobody may wait until it has begun both:
    if all ranks sent first and waited, none would be there to receive."""
    arriving = group.receive(Buffer.of(received), source=(group.rank - 1) % group.size)
    leaving = group.send(Buffer.of(sent), dest=(group.rank + 1) % group.size)
    arriving.wait()
    leaving.wait()
