"""Waits and compute of an emulated epoch."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from phalanx.bench.io.formats import Rows, Shape
from phalanx.bench.io.generate import sample_shards
from phalanx.bench.io.measure import timed_epoch, wait_until

ROWS = np.concatenate(
    list(sample_shards(Shape(num_samples=6, sample_bytes=16, shard_samples=6), part=0))
)
WANTED = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]


def test_waits_and_compute_make_up_the_epoch() -> None:
    def slow() -> Iterator[Rows]:
        for wanted in WANTED:
            time.sleep(0.02)
            yield ROWS[wanted]

    timed = timed_epoch(slow(), WANTED, compute_s=0.01, began=time.perf_counter())
    assert len(timed.waits_s) == 3
    assert min(timed.waits_s) >= 0.02
    assert timed.total_s >= sum(timed.waits_s) + 3 * 0.01
    assert (timed.samples, timed.wrong) == (6, 0)


def test_batches_in_another_order_are_wrong() -> None:
    batches = iter([ROWS[2:4], ROWS[0:2], ROWS[4:6]])
    timed = timed_epoch(batches, WANTED, compute_s=0.0, began=time.perf_counter())
    assert timed.wrong == 4


@pytest.mark.parametrize("ahead_s", [-1.0, 0.0, 1e-4, 5e-3])
def test_it_never_wakes_too_early(ahead_s: float) -> None:
    moment = time.perf_counter() + ahead_s
    wait_until(moment)
    assert time.perf_counter() >= moment
