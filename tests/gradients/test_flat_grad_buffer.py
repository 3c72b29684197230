"""Vectors in parts, summed in shared memory, against array operations."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.comm import kernels
from tests.conftest import Ranks, long

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built"),
]


@pytest.mark.parametrize("count", [1, long(2), 3, long(4)])
def test_sums_and_steps(ranks: Ranks, programs: Callable[[str], Path], count: int) -> None:
    output = ranks.mpi(count, programs("flat_grad_buffer.py"), "layouts")
    assert sorted(re.findall(r"rank (\d) is done", output)) == [str(r) for r in range(count)]


def test_sums_in_the_order_of_a_tree(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("tree_reducer.py"))
    assert sorted(re.findall(r"rank (\d) is done", output)) == ["0", "1", "2"]
    assert output.count("says: rank") + output.count("says: ranks") == 3
    assert "called all_reduce of parts(uint8, layout " in output


def test_other_sizes_on_another_rank_are_found(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(3, programs("flat_grad_buffer.py"), "mismatch")
    assert output.count("says: rank") + output.count("says: ranks") == 3
    assert "called all_reduce of parts(float32, layout " in output


def test_another_number_of_parts_is_refused_and_who_waits_is_seen_to_wait(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(2, programs("flat_grad_buffer.py"), "late", "missing")
    assert output.count("2 parts given, 3 wanted") == 2
