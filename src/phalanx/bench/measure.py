"""One case on all paths, in turn, every call begun together and its result checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.bench.paths.path import BenchParams, BenchPath, CaseBuffers, PreparedCase
from phalanx.bench.pattern import Pattern
from phalanx.bench.plan import Case, schedule, turns
from phalanx.bench.preemption import PreemptionCounter
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.group import Group

WARM_UP_CALLS = 2  # the first finds the path's own buffers untouched; the second is timed for costs


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The calls of one path in one round."""

    path: str
    round: int
    times_s: list[float]
    wrong: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    seconds: float  # for all paths of a case
    repeats: int | None
    calls_a_time: int  # timed together


def prepare(
    case: Case, paths: Sequence[BenchPath], group: Group, private: CaseBuffers
) -> tuple[dict[str, PreparedCase], dict[str, str]]:
    """The paths that can carry `case`, and why the others cannot. Collective.

    A path must fail on all ranks alike; if it fails on some, all leave it out.
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
        except Exception as error:  # noqa: BLE001  # whatever it cannot do, the others go on
            reason = _one_line(error)
        if everywhere(group, not reason) and made:
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
    """Every turn of every path; all ranks make the same."""
    pattern = Pattern(case, rank=params.rank, ranks=params.ranks, dtype=params.dtype, op=params.op)
    costs_s = {}
    for name, made in prepared.items():
        began = time.perf_counter()
        calls(made, pattern, barrier, range(WARM_UP_CALLS), budget.calls_a_time)
        costs_s[name] = (time.perf_counter() - began) / WARM_UP_CALLS
    # Rank 0's clock decides, so that all make the same number of calls.
    plan = group.share(schedule(costs_s, budget_s=budget.seconds, repeats=budget.repeats))
    for number, path in turns(list(prepared), plan.rounds):
        # The first call of a turn finds in the cache what the path before has left there.
        numbers = range(plan.calls[path] + 1)
        with preemption.watch(path):
            times_s, wrong = calls(prepared[path], pattern, barrier, numbers, budget.calls_a_time)
        yield Turn(path=path, round=number, times_s=times_s[1:], wrong=wrong)


def calls(
    made: PreparedCase,
    pattern: Pattern,
    barrier: Callable[[], None],
    numbers: range,
    calls_a_time: int = 1,
) -> tuple[list[float], int]:
    """(seconds of each call, wrong elements of all of them).

    With several calls a time their mean is given, and one more call, whose input is fresh, is
    checked: in place, sums of sums would soon leave what a type can hold exactly.
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
    """Fresh input on every rank, and all ranks here."""
    pattern.fill(made.memory.input, number)
    if made.copy_in:
        made.copy_in()
    barrier()


def everywhere(group: Group, well: bool) -> bool:
    """Return whether `well` is true on all ranks. Collective."""
    word = np.array([well], np.int32)
    group.all_reduce(Buffer.of(word), ReduceOp.MIN)
    return bool(word[0])


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
