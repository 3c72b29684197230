"""Involuntary context switches of a rank while it measures."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Paths on which a rank spins if every rank has a core. Gloo and the front end of torch.distributed
# run own threads, which share the rank's core.
_WATCHED = frozenset({"window", "phalanx", "mpi"})


class PreemptionCounter:
    """Involuntary context switches and seconds inside `watch` blocks."""

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
    """Return the involuntary context switches of this thread; 0 if the system counts none."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw
