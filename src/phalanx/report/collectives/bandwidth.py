"""Bandwidths and floors of collectives, from sizes and times. Pure.

For a collective over p ranks whose larger buffer holds n bytes on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from phalanx.records.collectives import Collective

OfRanks = Callable[[int], float]
_RULES: dict[Collective, tuple[OfRanks, OfRanks, OfRanks]] = {
    # every buffer is read once and written once
    "all_reduce": (lambda p: 2 * (p - 1) / p, lambda p: 2 * p, lambda _: 1),
    # all inputs are read, each rank's n/p is written
    "reduce_scatter": (lambda p: (p - 1) / p, lambda p: p + 1, lambda p: 1 + 1 / p),
    # each rank reads all shards and writes its n
    "all_gather": (lambda p: (p - 1) / p, lambda p: 2 * p, lambda p: 1 + 1 / p),
    "all_to_all": (lambda p: (p - 1) / p, lambda p: 2 * p, lambda _: 2),
    "broadcast": (lambda _: 1, lambda p: 2 * (p - 1), lambda _: 1),
    "barrier": (lambda _: 0, lambda _: 0, lambda _: 0),
}
"""Functions of the number of ranks, in units of n: the bus factor; bytes read and written by all
ranks together, each reading the others' buffers where they lie; bytes of any memory that one rank
touches."""


def bus_bandwidth(collective: Collective, ranks: int, num_bytes: int, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second, as defined by nccl-tests."""
    return num_bytes / seconds * _RULES[collective][0](ranks)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Bandwidth and latency of the machine while all ranks are active."""

    copy: Mapping[int, float]  # bytes/s of all ranks, by bytes that each touches in a pass
    add: Mapping[int, float]
    round_trip_s: float | None  # latency of a flag; None when ranks share no memory


def floor_s(collective: Collective, ranks: int, num_bytes: int, machine: Machine) -> float | None:
    """Return the least time that a collective can take through shared memory: memory traffic and
    flags.

    Traffic: bytes that must move ÷ the copy bandwidth at that working set. Flags: a round trip, or
    one way for a barrier.

    None when the machine was not measured, or there is nobody to talk to.
    """
    if ranks < 2 or machine.round_trip_s is None or (num_bytes and not machine.copy):
        return None
    flags_s = machine.round_trip_s * (0.5 if collective == "barrier" else 1.0)
    if not num_bytes:
        return flags_s
    _, traffic, touched = (rule(ranks) * num_bytes for rule in _RULES[collective])
    return traffic / interpolated(machine.copy, touched) + flags_s


def interpolated(curve: Mapping[int, float], at: float) -> float:
    """The value of a curve between its points, both axes logarithmic; flat beyond its ends."""
    sizes = sorted(curve)
    rates = [curve[size] for size in sizes]
    return float(np.exp(np.interp(np.log(at), np.log(sizes), np.log(rates))))
