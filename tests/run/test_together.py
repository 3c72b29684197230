"""Ranks that are a part of others, and ranks that do not do the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, long


@pytest.mark.mpi
def test_parts_of_the_ranks_and_mistakes(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("together.py"))
    assert output.count("is through") == 3


@pytest.mark.mpi
@pytest.mark.parametrize("who", [long("one"), long("all")])
def test_ranks_leave_their_loop_together(
    who: str, new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = new_ranks.mpi(2, programs("leaving.py"), who, may_fail=who == "one")
    if who == "all":
        assert output.count("has left") == 2
    else:
        waited = "rank 0 waited 3 s in the all-reduce of gradients for rank 1: has it left its loop"
        assert waited in output or "rank 1 left its loop after 1 updates" in output
