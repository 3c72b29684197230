"""The sizes of buckets, the order in which they are complete, and the thread that carries them."""

import itertools
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.comm.link import Link
from phalanx.gradients.buckets import (
    LAST_BUCKET_DIVISOR,
    TRANSFER_TO_LATENCY,
    assign_buckets,
    network_bucket_bytes,
)
from phalanx.gradients.comm_thread import CommTasks
from phalanx.gradients.gradient_buckets import Bucket, BucketOrder, make_buckets

SIZES = st.lists(st.integers(1, 100), min_size=1, max_size=20)


@given(SIZES, st.integers(1, 200), st.randoms())
def test_the_last_bucket_is_small(sizes: list[int], largest: int, random) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    last_bytes = largest // LAST_BUCKET_DIVISOR
    plain = assign_buckets(sizes, ["a"] * len(sizes), order, largest)
    buckets = assign_buckets(sizes, ["a"] * len(sizes), order, largest, last_bytes)
    assert [number for bucket in buckets for number in bucket] == order
    assert all(buckets)
    assert buckets[: len(plain) - 1] == plain[:-1]
    last = sum(sizes[number] for number in buckets[-1])
    if len(buckets) == 1:
        assert last - sizes[order[-1]] <= 2 * last_bytes, "too little before it"
        return
    assert last <= last_bytes or len(buckets[-1]) == 1
    if len(buckets) > len(plain):
        assert last + sizes[buckets[-2][-1]] > last_bytes, "it holds what it may"


def test_a_bucket_is_long_on_its_way_and_not_longer() -> None:
    late = Link(bandwidth_bytes_per_s=125e6, latency_s=1e-3)
    travel_s = network_bucket_bytes(late) / 125e6
    assert TRANSFER_TO_LATENCY * 2 * 1e-3 < travel_s < 1.1 * TRANSFER_TO_LATENCY * 2 * 1e-3
    assert network_bucket_bytes(Link(bandwidth_bytes_per_s=1e3)) == 2**16
    slower = Link(bandwidth_bytes_per_s=12.5e6, latency_s=1e-3)
    assert network_bucket_bytes(slower) < network_bucket_bytes(late)
    assert network_bucket_bytes(Link(latency_s=1e-3)) > 2**20  # of what nothing else is known


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(4, 60), st.randoms())
def test_buckets_are_complete_once_and_in_their_order(
    sizes: list[int], largest: int, random
) -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    numbers = range(len(sizes))
    assigned = assign_buckets([4 * size for size in sizes], ["f"] * len(sizes), numbers, largest)
    members = [[parameters[number] for number in own] for own in assigned]
    buckets = make_buckets(members, lambda n: torch.ones(n, dtype=torch.uint8))
    order = BucketOrder(members)

    def filled(found: range) -> list[Bucket]:
        complete = buckets[found.start : found.stop]
        for bucket in complete:
            bucket.copy_in()
        return complete

    for _ in range(2):
        order.begin()
        for bucket in buckets:
            bucket.begin()
        coming = random.sample(numbers, random.randint(0, len(sizes)))
        complete = []
        for number in coming:
            parameters[number].grad = torch.full((sizes[number],), float(number + 1))
            complete += filled(order.mark_ready(parameters[number]))
        for bucket in complete:
            assert all(p.grad is not None and p.grad[0] > 0 for p in bucket.parameters)
        complete += filled(order.flush())
        for bucket in complete:
            bucket.copy_out()
        assert [bucket.number for bucket in complete] == list(range(len(assigned)))
        for number, parameter in enumerate(parameters):
            wanted = float(number + 1) if number in coming else 0.0
            assert parameter.grad is not None and (parameter.grad == wanted).all()
            parameter.grad = None
        for bucket in buckets:
            held = [float(n + 1 if n in coming else 0) for n in assigned[bucket.number]]
            spread = [
                v
                for n, v in zip(assigned[bucket.number], held, strict=True)
                for _ in [0] * sizes[n]
            ]
            assert bucket.values.tolist() == spread


def test_tasks_run_in_order_on_a_thread_that_ends() -> None:
    seen: list[tuple[int, int]] = []
    thread = CommTasks(lambda task: seen.append((task, threading.get_ident())), on_thread=True)
    for task in range(5):
        thread.submit(task)
    done = thread.wait()
    assert [completed.task for completed in done] == [task for task, _ in seen] == list(range(5))
    assert len({ident for _, ident in seen} | {threading.get_ident()}) == 2
    assert all(a.ended_ns <= b.began_ns for a, b in itertools.pairwise(done))
    assert thread.wait() == []
    thread.close()
    assert not thread._thread.is_alive()


def test_after_an_error_no_more_tasks_run() -> None:
    seen: list[int] = []

    def do(task: int) -> None:
        seen.append(task)
        if task == 1:
            raise ArithmeticError("it broke")

    thread = CommTasks(do, on_thread=True)
    thread.submit(1)
    with pytest.raises(ArithmeticError, match="it broke"):
        thread.wait()
    with pytest.raises(ArithmeticError, match="it broke"):
        thread.submit(2)
    thread.close()
    assert seen == [1]
