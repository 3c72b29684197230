"""More ranks than cores: they leave the cores to those who have work to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks

pytestmark = [pytest.mark.mpi, pytest.mark.alone]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_who_waits_takes_no_core(ranks: Ranks, programs: Callable[[str], Path], count: int) -> None:
    output = ranks.mpi(count, programs("waiting.py"))
    assert all(f"rank {rank} of {count} is done" in output for rank in range(count))


def test_sixteen_ranks(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(16, programs("many.py"))
    assert all(f"rank {rank} of 16 is done" in output for rank in range(16))
