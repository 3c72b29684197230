"""The arithmetic of the shared all-reduce, without MPI."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm.collectives.shared import slice_of, sum_into_all


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 17))
def test_slices_cover_the_range_once_and_differ_by_at_most_one(
    start: int, length: int, size: int
) -> None:
    slices = [slice_of(start, start + length, rank, size) for rank in range(size)]
    assert slices[0][0] == start
    assert slices[-1][1] == start + length
    assert all(a[1] == b[0] for a, b in itertools.pairwise(slices))
    lengths = [end - begin for begin, end in slices]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_part_holds_the_sum_in_rank_order(size: int) -> None:
    rng = np.random.default_rng(size)
    parts = [rng.standard_normal(1001).astype(np.float32) for _ in range(size)]
    expected = parts[0].copy()
    for part in parts[1:]:
        expected = expected + part  # the order is part of the promise: float sums depend on it
    sum_into_all(parts)
    assert all(part.tobytes() == expected.tobytes() for part in parts)
