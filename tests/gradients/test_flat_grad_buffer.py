"""Vectors in parts, brought together in shared memory: in C, and in array operations."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.comm import kernels
from tests.conftest import Ranks, long

pytestmark = pytest.mark.mpi

WAYS = ["arrays"] if kernels.compiled() is None else ["C", "arrays"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "arrays":
        monkeypatch.setenv(kernels.VARIABLE, "arrays")
    return str(request.param)


@pytest.mark.parametrize("count", [1, long(2), 3, long(4)])
def test_sums_and_steps(
    ranks: Ranks, programs: Callable[[str], Path], way: str, count: int
) -> None:
    output = ranks.mpi(count, programs("flat_grad_buffer.py"), "layouts", way)
    assert sorted(re.findall(r"rank (\d) is done", output)) == [str(r) for r in range(count)]


@pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")
def test_other_sizes_on_another_rank_are_found(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(3, programs("flat_grad_buffer.py"), "mismatch", "C")
    assert output.count("says: rank") + output.count("says: ranks") == 3
    assert "called all_reduce of parts(float32, layout " in output


@pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")
def test_a_part_that_was_not_handed_over_is_named(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    assert (
        ranks.mpi(2, programs("flat_grad_buffer.py"), "missing", "C").count("part 1 was not") == 2
    )
