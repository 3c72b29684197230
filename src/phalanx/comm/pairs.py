"""Latency and bandwidth between pairs of ranks, measured in rounds of disjoint pairs."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LARGE_BYTES = 1 << 20
BUDGET_S = 1.0
"""Seconds for all rounds; rounds that would begin later are left out."""
SLOW_SHARE = 1 / 3
"""Share of the median bandwidth; a pair below it is measured again, by itself."""
_PAIR_S = 0.05  # time for large messages of a pair beyond the first
_MAX_AGAIN = 4
_NUM_SMALL = 10
_MAX_LARGE = 4
_TAG = 1


class PairSpeed(NamedTuple):
    """The link between two ranks, each on a node of its own."""

    first: int
    second: int
    latency_s: float
    bandwidth_bytes_per_s: float


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


def measure_pairs(communicator: Any) -> list[PairSpeed]:
    """Measure pairs of ranks until `BUDGET_S` is over; collective.

    communicator: of mpi4py.
    Returns each pair measured on rank 0, nothing on others.
    """
    began_s = time.monotonic()
    measured: list[PairSpeed] = []
    for pairs in pair_rounds(communicator.Get_size()):
        if not communicator.bcast(time.monotonic() - began_s < BUDGET_S):
            break
        measured += _measure_round(communicator, pairs)
    found = list(itertools.chain.from_iterable(communicator.gather(measured) or []))
    # Another process may have held a core for the few ms that a pair had.
    again = [_measure_round(communicator, [pair]) for pair in communicator.bcast(slow_pairs(found))]
    for each in communicator.gather(list(itertools.chain.from_iterable(again))) or []:
        found += each
    return best_of_pairs(found)


def slow_pairs(found: Sequence[PairSpeed]) -> list[tuple[int, int]]:
    """Return the slowest pairs of those far below the median bandwidth, to be measured again."""
    usual = statistics.median([bandwidth for *_, bandwidth in found] or [0.0])
    slow = [pair for pair in found if pair[3] < SLOW_SHARE * usual]
    return [(first, second) for first, second, *_ in sorted(slow, key=lambda it: it[3])][
        :_MAX_AGAIN
    ]


def best_of_pairs(found: Iterable[PairSpeed]) -> list[PairSpeed]:
    """Return one entry a pair: its shortest latency and its largest bandwidth."""
    best: dict[tuple[int, int], tuple[float, float]] = {}
    for first, second, latency_s, bandwidth in found:
        least_s, most = best.get((first, second), (latency_s, bandwidth))
        best[first, second] = min(least_s, latency_s), max(most, bandwidth)
    return [PairSpeed(*pair, *best[pair]) for pair in sorted(best)]


def _measure_round(communicator: Any, pairs: Iterable[tuple[int, int]]) -> list[PairSpeed]:
    """Measure disjoint pairs at once; collective. Returns the pairs that this rank leads."""
    rank = communicator.Get_rank()
    measured = []
    for first, second in pairs:
        if rank == first:
            measured.append(PairSpeed(first, second, *_lead(communicator, second)))
        elif rank == second:
            _follow(communicator, first)
    communicator.Barrier()
    return measured


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
