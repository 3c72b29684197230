"""The hardware limits: memory bandwidth by working-set size, and round trips of a flag."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from phalanx.comm.group import Group
from phalanx.records.collectives import Kernel

SMALLEST_BYTES = 2**16  # below, the cost of a call from Python hides that of the memory
REPEATS = 9
ROUND_TRIPS = 50
PASS_S = 2e-3  # of the passes that are timed together
FLAGS_A_TIME = 20  # so few that most times are free of an interruption
EMPTY_BYTES = 64
# Arrays of a pass, each an equal part of the working set; each byte of them is moved once.
_ARRAYS: dict[Kernel, int] = {"copy": 2, "add": 3}


def working_sets(largest_bytes: int) -> list[int]:
    """From 64 KB by powers of four up to what the largest buffer needs."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] < largest_bytes:
        sizes.append(4 * sizes[-1])
    return sizes


def kernel(name: Kernel, working_set_bytes: int) -> Callable[[], object]:
    """One pass over memory of this rank, which it has touched."""
    count = max(1, working_set_bytes // (4 * _ARRAYS[name]))
    target, *sources = (np.ones(count, np.float32) for _ in range(_ARRAYS[name]))
    if name == "copy":
        return lambda: np.copyto(target, sources[0])
    return lambda: np.add(sources[0], sources[1], out=target)


def measure_memory(
    name: Kernel, working_set_bytes: int, group: Group, barrier: Callable[[], None]
) -> Iterator[float]:
    """Seconds of a pass, while every rank makes its own. The cost of a call is taken off."""
    one_pass, empty = kernel(name, working_set_bytes), kernel(name, EMPTY_BYTES)
    one_pass()
    passes = group.share(max(1, int(PASS_S / max(_timed(one_pass, 3), 1e-9))))
    for _ in range(REPEATS):
        overhead_s = _timed(empty, min(1000, 10 * passes))
        barrier()
        pass_s = _timed(one_pass, passes)
        yield max(pass_s - overhead_s, 0.1 * pass_s)


def measure_round_trips(barrier: Callable[[], None]) -> Iterator[float]:
    """Seconds there and back between two ranks whose barrier this is: in it a flag goes one way
    and another one the other way, both at once."""
    _timed(barrier, FLAGS_A_TIME)
    for _ in range(ROUND_TRIPS):
        yield 2 * _timed(barrier, FLAGS_A_TIME)


def _timed(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
