"""Collectives through shared memory: values, order, and what ends them."""

import pytest

from phalanx.comm.kernels import compiled
from phalanx.comm.shm import describe_call
from tests.conftest import Programs, Ranks, done

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(compiled() is None, reason="no C kernels were built"),
]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_collective(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("shm.py"), "order"), count)
    assert done(ranks.mpi(count, programs("group.py"), "memory", "thresholds"), count)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_that_may_not_read_each_other_copy(
    new_ranks: Ranks, programs: Programs, count: int
) -> None:
    assert done(new_ranks.mpi(count, programs("unread.py")), count)


def test_different_calls_are_found_on_every_rank(ranks: Ranks, programs: Programs) -> None:
    output = ranks.mpi(2, programs("shm.py"), "mismatch")
    for said in (
        "count: rank 0 called all_reduce(float32, 10 elements, SUM), "
        "rank 1 called all_reduce(float32, 11 elements, SUM)",
        "large: rank 0 called all_reduce(float32, 50000 elements, SUM), rank 1 called",
        "dtype: rank 0 called all_reduce(float32, 8 elements, SUM), "
        "rank 1 called all_reduce(float64, 8 elements, SUM)",
        "root: rank 0 called broadcast(float32, 8 elements, root 0), "
        "rank 1 called broadcast(float32, 8 elements, root 1)",
        "kind: rank 0 called all_reduce(float32, 8 elements, SUM), rank 1 called barrier()",
        "average: rank 0 called all_reduce(float32, 8 elements, SUM), "
        "rank 1 called all_reduce(float32, 8 elements, SUM, divided by 2)",
        "operation: rank 0 called all_reduce(float32, 8 elements, SUM), "
        "rank 1 called all_reduce(float32, 8 elements, MAX)",
    ):
        assert output.count(said) == 2, f"{said}\n{output}"
    assert output.count("divisor: ") == 2, output


def test_calls_are_described_in_words() -> None:
    assert describe_call(1, 0) == "barrier()"
    assert describe_call(6 | 1 << 16 | 3 << 32, 80) == "broadcast(float64, 10 elements, root 3)"
    # The number of the call, in the highest bits, is no part of what is called.
    averaged = 2 | 2 << 24 | 0xFFFF << 32 | 7 << 48
    assert describe_call(averaged, 5) == "all_reduce(float32, 5 elements, SUM, divided by 3)"
    assert describe_call(4 | 200 << 24, 0xABCD).endswith("SUM, divided)")
