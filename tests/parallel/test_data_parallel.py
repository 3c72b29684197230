import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.gradients.buckets import assign_buckets, largest_bucket_bytes
from phalanx.parallel.data_parallel import DataParallel
from tests.conftest import Ranks, long

PARAMETERS = st.lists(st.tuples(st.integers(1, 100), st.sampled_from("ab")), min_size=1)


@given(PARAMETERS, st.integers(1, 200), st.randoms())
def test_buckets_hold_everything_once_and_little_enough(
    parameters: list[tuple[int, str]], largest: int, random
) -> None:
    sizes, kinds = [size for size, _ in parameters], [kind for _, kind in parameters]
    order = list(range(len(sizes)))
    random.shuffle(order)
    buckets = assign_buckets(sizes, kinds, order, largest)
    assert sorted(number for bucket in buckets for number in bucket) == sorted(order)
    for bucket in buckets:
        assert len({kinds[number] for number in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes[number] for number in bucket) <= largest
        assert bucket == sorted(bucket, key=order.index)
    ends = [max(order.index(number) for number in bucket) for bucket in buckets]
    assert ends == sorted(ends)


def test_all_ranks_buckets_fill_half_of_the_cache() -> None:
    assert largest_bucket_bytes(2, 32 * 2**20) == 8 * 2**20
    assert largest_bucket_bytes(1000, 32 * 2**20) == 2**20


@pytest.mark.parametrize(
    ("count", "algorithm"),
    [(1, "auto"), long(2, "auto"), (3, "auto"), long(4, "auto"), (3, "direct")],
)
@pytest.mark.mpi
def test_parameters_are_those_of_one_process(
    ranks: Ranks,
    programs: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    algorithm: str,
) -> None:
    monkeypatch.setenv("PHALANX_ALL_REDUCE", algorithm)
    output = ranks.mpi(count, programs("data_parallel.py"))
    assert len(re.findall(rf"rank \d of {count} is done", output)) == count


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        DataParallel(nn.ReLU(), None)
