"""Measure one case on all paths in turn; ranks start each call together, results are checked."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from phalanx.bench.paths.path import BenchParams, BenchPath, CaseBuffers, PreparedCase
from phalanx.bench.pattern import Pattern
from phalanx.bench.plan import Case, schedule, turns
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
        before, began = _preempted(), time.perf_counter()
        yield
        self.watched_s += time.perf_counter() - began
        self.preempted += _preempted() - before


def _preempted() -> int:
    """Return the involuntary context switches of this thread; 0 if the system counts none."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw


WARM_UP_CALLS = 2  # the first touches the path's buffers, the second estimates the cost


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The calls of one path in one round."""

    path: str
    round: int
    times_s: list[float]
    wrong: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    seconds: float  # all paths of a case together
    repeats: int | None
    calls_a_time: int  # timed together


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
            reason = _one_line(error)
        if all_ranks(group, not reason) and made:
            prepared[path.name] = made
        else:
            unsupported[path.name] = reason or "it fails on another rank"
    return prepared, unsupported


def measure(
    case: Case,
    prepared: Mapping[str, PreparedCase],
    group: Group,
    barrier: Callable[[], None],
    params: BenchParams,
    budget: Budget,
    preemption: PreemptionCounter,
) -> Iterator[Turn]:
    """Yield the turns of all paths, the same on all ranks."""
    pattern = Pattern(case, rank=params.rank, ranks=params.ranks, dtype=params.dtype, op=params.op)
    costs_s = {}
    for name, made in prepared.items():
        began = time.perf_counter()
        time_calls(made, pattern, barrier, range(WARM_UP_CALLS), budget.calls_a_time)
        costs_s[name] = (time.perf_counter() - began) / WARM_UP_CALLS
    # Rank 0's clock decides, so that all make the same number of calls.
    plan = group.share(schedule(costs_s, budget_s=budget.seconds, repeats=budget.repeats))
    for number, path in turns(list(prepared), plan.rounds):
        # The first call of a turn is dropped: the path before it has filled the cache.
        numbers = range(plan.calls[path] + 1)
        with preemption.watch(path):
            times_s, wrong = time_calls(
                prepared[path], pattern, barrier, numbers, budget.calls_a_time
            )
        yield Turn(path=path, round=number, times_s=times_s[1:], wrong=wrong)


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


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
