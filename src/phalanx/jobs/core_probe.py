"""A look at the machine before or between measurements: does each thread have a core?"""

from __future__ import annotations

import hashlib
import statistics
import threading
import time

from phalanx.records.schema import Probe

DURATION_S = 0.1
CALLS, KEPT = 200, 17
BLOCK = bytes(256 * 1024)
"""Large enough that hashing it lets other threads run."""


def probe(cores: int, duration_s: float = DURATION_S) -> Probe:
    """Compute on all cores for a moment, and see how much of the time each thread had a core.

    cores: that this process may use.
    """
    shares = [0.0] * cores
    threads = [
        threading.Thread(target=_compute, args=(number, shares, duration_s))
        for number in range(cores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Probe(core_share=sum(shares) / cores, lowest=min(shares))


def call_s(duration_s: float = DURATION_S) -> float:
    """Return the median processor seconds of a fixed piece of Python. A neighbour beyond this
    machine's sight, on the other thread of a core, makes it longer, and takes no share of it."""
    times, until_s = list[float](), time.perf_counter() + duration_s
    while time.perf_counter() < until_s or not times:
        began_s = time.thread_time()
        _make_calls()
        times.append(time.thread_time() - began_s)
    return statistics.median(times)


class _Called:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def plus(self, other: _Called) -> _Called:
        return _Called(self.number + other.number)


def _make_calls() -> None:
    kept, called = dict[int, tuple[int, _Called]](), _Called(0)
    for number in range(CALLS):
        called = called.plus(_Called(number))
        kept[number % KEPT] = (number, called)


def _compute(number: int, shares: list[float], duration_s: float) -> None:
    began, began_on_core = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began < duration_s:
        hashlib.sha256(BLOCK).digest()
    took = time.perf_counter() - began
    shares[number] = min(1.0, (time.thread_time() - began_on_core) / took)
