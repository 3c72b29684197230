"""Latency and bandwidth between pairs of ranks, measured in rounds of disjoint pairs."""

from __future__ import annotations

import itertools
import time
from typing import Any

LARGE_BYTES = 1 << 20
BUDGET_S = 1.0
"""For all rounds; rounds that would begin later are left out."""
_PAIR_S = 0.05  # for large messages of a pair beyond the first
_NUM_SMALL = 10
_MAX_LARGE = 4
_TAG = 1


def pair_rounds(num_ranks: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs, in which every pair of ranks meets once (circle method)."""
    circle: list[int | None] = list(range(num_ranks))
    if num_ranks % 2:
        circle.append(None)  # whoever meets it rests
    rounds = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle), strict=False)
        rounds.append(
            [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        )
        circle.insert(1, circle.pop())
    return rounds


def measure_pairs(communicator: Any) -> list[tuple[int, int, float, float]]:
    """Measure pairs of ranks until `BUDGET_S` is over; collective.

    communicator: of mpi4py.
    Returns on rank 0 (rank, rank, latency in s, bandwidth in bytes/s) of each pair measured;
    nothing on others.
    """
    rank, began_s = communicator.Get_rank(), time.monotonic()
    measured = []
    for pairs in pair_rounds(communicator.Get_size()):
        if not communicator.bcast(time.monotonic() - began_s < BUDGET_S):
            break
        for first, second in pairs:
            if rank == first:
                measured.append((first, second, *_lead(communicator, second)))
            elif rank == second:
                _follow(communicator, first)
        communicator.Barrier()
    found = communicator.gather(measured)
    return sorted(itertools.chain.from_iterable(found or []))


def _lead(communicator: Any, peer: int) -> tuple[float, float]:
    """Return latency and bandwidth to `peer`, by the shortest of some round trips."""
    small, large = bytearray(8), bytearray(LARGE_BYTES)
    _round_trip_s(communicator, peer, small)
    latency_s = min(_round_trip_s(communicator, peer, small) for _ in range(_NUM_SMALL)) / 2
    first_s = _round_trip_s(communicator, peer, large)
    more = max(1, min(_MAX_LARGE, int(_PAIR_S / first_s)))
    communicator.send(more, peer, _TAG)
    best_s = min(_round_trip_s(communicator, peer, large) for _ in range(more)) / 2
    return latency_s, LARGE_BYTES / best_s


def _round_trip_s(communicator: Any, peer: int, message: bytearray) -> float:
    began_s = time.perf_counter()
    communicator.Send(message, peer, _TAG)
    communicator.Recv(message, peer, _TAG)
    return time.perf_counter() - began_s


def _follow(communicator: Any, peer: int) -> None:
    """Send every message of `_lead` back."""
    small, large = bytearray(8), bytearray(LARGE_BYTES)
    for _ in range(1 + _NUM_SMALL):
        _return(communicator, peer, small)
    _return(communicator, peer, large)
    for _ in range(communicator.recv(source=peer, tag=_TAG)):
        _return(communicator, peer, large)


def _return(communicator: Any, peer: int, message: bytearray) -> None:
    communicator.Recv(message, peer, _TAG)
    communicator.Send(message, peer, _TAG)
