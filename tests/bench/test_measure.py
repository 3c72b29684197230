"""The calls of one path: timed one by one, filled before and checked after. Without MPI."""

import time
from collections.abc import Callable

import numpy as np

from phalanx.bench.call_schedule import Case
from phalanx.bench.measure import time_calls
from phalanx.bench.paths.path import BenchParams, CaseBuffers, PreparedCase
from phalanx.bench.pattern import Pattern
from phalanx.comm.dtypes import FLOAT32, ReduceOp

CASE = Case(collective="all_reduce", count=1000, num_bytes=4000)
PARAMS = BenchParams(rank=0, ranks=1, dtype=FLOAT32, op=ReduceOp.SUM)


def made(call: Callable[[CaseBuffers], object]) -> tuple[PreparedCase, Pattern]:
    """A path of one rank, on which an all-reduce has nothing to do."""
    memory = CaseBuffers.make(CASE, PARAMS)
    pattern = Pattern(CASE, rank=0, ranks=1, dtype=FLOAT32, op=ReduceOp.SUM)
    return PreparedCase(memory=memory, call=lambda: call(memory)), pattern


def test_right_results() -> None:
    prepared, pattern = made(lambda _: None)
    times_s, wrong = time_calls(prepared, pattern, lambda: None, range(5))
    assert (len(times_s), wrong) == (5, 0)


def test_a_wrong_element_in_every_call_is_counted() -> None:
    def add_one(memory: CaseBuffers) -> None:
        memory.output[17] += 1

    prepared, pattern = made(add_one)
    _, wrong = time_calls(prepared, pattern, lambda: None, range(5))
    assert wrong == 5


def test_buffers_are_rewritten_before_every_call() -> None:
    seen = []
    prepared, pattern = made(lambda memory: seen.append(memory.input.copy()))
    time_calls(prepared, pattern, lambda: None, range(3))
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[0], seen[2])


def test_only_the_call_itself_is_timed() -> None:
    prepared, pattern = made(lambda _: time.sleep(0.002))
    times_s, _ = time_calls(prepared, pattern, lambda: time.sleep(0.2), range(2))
    assert all(0.002 <= seconds < 0.2 for seconds in times_s)


def test_memory_elsewhere_is_brought_there_and_back() -> None:
    order: list[str] = []
    memory = CaseBuffers.make(CASE, PARAMS)
    prepared = PreparedCase(
        memory=memory,
        call=lambda: order.append("call"),
        copy_in=lambda: order.append("put"),
        copy_out=lambda: order.append("get"),
    )
    _, pattern = made(lambda _: None)
    time_calls(prepared, pattern, lambda: order.append("barrier"), range(1))
    assert order == ["put", "barrier", "call", "get"]


def test_several_calls_a_time_are_given_by_their_mean_and_one_more_is_checked() -> None:
    numbers = []

    def double(memory: CaseBuffers) -> None:
        numbers.append(memory.input[0])
        time.sleep(0.002)
        memory.output[:] *= 2  # wrong, on purpose

    prepared, pattern = made(double)
    times_s, wrong = time_calls(prepared, pattern, lambda: None, range(2), calls_a_time=3)
    assert len(numbers) == 2 * 4
    assert numbers[3] == numbers[0], "the checked call has fresh input"
    assert all(seconds >= 0.002 for seconds in times_s)
    assert wrong == 2 * CASE.count
