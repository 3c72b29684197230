"""Prepare one case on all paths and time its calls; ranks start each call together, results are
checked."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from phalanx.bench.call_schedule import Case
from phalanx.bench.paths.path import BenchPath, CaseBuffers, PreparedCase
from phalanx.bench.pattern import Pattern
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group

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
        before, began = resource.getrusage(resource.RUSAGE_THREAD), time.perf_counter()
        yield
        self.watched_s += time.perf_counter() - began
        self.preempted += resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - before.ru_nivcsw


def prepare(
    case: Case, paths: Sequence[BenchPath], group: Group, private: CaseBuffers
) -> tuple[dict[str, PreparedCase], dict[str, str]]:
    """Return the paths that support `case`, and the reasons of the others. Collective.

    A path that fails on some ranks is left out on all.
    """
    prepared: dict[str, PreparedCase] = {}
    unsupported: dict[str, str] = {}
    for path in paths:
        reason, made = "", None
        try:
            made = path.prepare(case, private)
            if made.copy_in:
                made.copy_in()
            made.call()
        except Exception as error:  # noqa: BLE001  # the other paths continue
            reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        if all_ranks(group, not reason) and made:
            prepared[path.name] = made
        else:
            unsupported[path.name] = reason or "it fails on another rank"
    return prepared, unsupported


def time_calls(
    made: PreparedCase,
    pattern: Pattern,
    barrier: Callable[[], None],
    numbers: range,
    calls_a_time: int = 1,
) -> tuple[list[float], int]:
    """Return (seconds of each call, number of wrong elements).

    With several calls at a time the mean is returned, and one more call with fresh input is
    checked: in place, repeated sums would soon be inexact.
    """
    times_s, wrong = [], 0
    for number in numbers:
        _begin(made, pattern, barrier, number)
        began = time.perf_counter()
        for _ in range(calls_a_time):
            made.call()
        times_s.append((time.perf_counter() - began) / calls_a_time)
        if calls_a_time > 1:
            _begin(made, pattern, barrier, number)
            made.call()
        if made.copy_out:
            made.copy_out()
        wrong += pattern.count_wrong(made.memory.output, number)
    return times_s, wrong


def _begin(made: PreparedCase, pattern: Pattern, barrier: Callable[[], None], number: int) -> None:
    """Write fresh input, then enter the barrier."""
    pattern.fill(made.memory.input, number)
    if made.copy_in:
        made.copy_in()
    barrier()


def all_ranks(group: Group, well: bool) -> bool:
    """Return whether `well` is true on all ranks. Collective."""
    word = np.array([well], np.int32)
    group.all_reduce(Buffer.of(word), ReduceOp.MIN)
    return bool(word[0])
