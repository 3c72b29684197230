"""Involuntary context switches of a rank while it measures."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Paths on which a rank spins where every rank has a core. Gloo and the front end of
# torch.distributed have threads of their own, which take turns with the rank.
_WATCHED = frozenset({"window", "phalanx", "mpi"})


class PreemptionCounter:
    """Counts over everything that is done inside `watch`."""

    def __init__(self) -> None:
        self.watched_s = 0.0
        self.preempted = 0

    @contextmanager
    def watch(self, path: str) -> Iterator[None]:
        if path not in _WATCHED:
            yield
            return
        before, began = _preempted(), time.perf_counter()
        yield
        self.watched_s += time.perf_counter() - began
        self.preempted += _preempted() - before


def _preempted() -> int:
    """Involuntary context switches of this thread so far; 0 where the system does not tell."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw
