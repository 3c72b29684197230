"""The hardware limits: memory bandwidth by working-set size, and round trips of a flag."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from phalanx.comm.group import Group
from phalanx.records.collectives import Kernel

SMALLEST_BYTES = 2**16  # below, the Python call costs more than the memory access
REPEATS = 9
ROUND_TRIPS = 50
PASS_S = 2e-3  # duration of the passes timed together
FLAGS_A_TIME = 20  # few enough that most timings see no interrupt
EMPTY_BYTES = 64
# Number of arrays of a pass, which share the working set; each byte is moved once.
_ARRAYS: dict[Kernel, int] = {"copy": 2, "add": 3}


def working_sets(largest_bytes: int) -> list[int]:
    """Return working-set sizes from 64 KB by powers of four up to the largest buffer."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] < largest_bytes:
        sizes.append(4 * sizes[-1])
    return sizes


def kernel(name: Kernel, working_set_bytes: int) -> Callable[[], object]:
    """Return a function that makes one pass over touched memory of this rank."""
    count = max(1, working_set_bytes // (4 * _ARRAYS[name]))
    target, *sources = (np.ones(count, np.float32) for _ in range(_ARRAYS[name]))
    if name == "copy":
        return lambda: np.copyto(target, sources[0])
    return lambda: np.add(sources[0], sources[1], out=target)


def measure_memory(
    name: Kernel, working_set_bytes: int, group: Group, barrier: Callable[[], None]
) -> Iterator[float]:
    """Yield seconds of a pass, on all ranks at once, minus the cost of an empty call."""
    one_pass, empty = kernel(name, working_set_bytes), kernel(name, EMPTY_BYTES)
    one_pass()
    passes = group.share(max(1, int(PASS_S / max(_timed(one_pass, 3), 1e-9))))
    for _ in range(REPEATS):
        overhead_s = _timed(empty, min(1000, 10 * passes))
        barrier()
        pass_s = _timed(one_pass, passes)
        yield max(pass_s - overhead_s, 0.1 * pass_s)


def measure_round_trips(barrier: Callable[[], None]) -> Iterator[float]:
    """Yield seconds of a round trip of a flag between two ranks.

    `barrier` is that of the two ranks, in which both set a flag at once: half a round trip.
    """
    _timed(barrier, FLAGS_A_TIME)
    for _ in range(ROUND_TRIPS):
        yield 2 * _timed(barrier, FLAGS_A_TIME)


def _timed(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
