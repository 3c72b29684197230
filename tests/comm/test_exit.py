"""Ends of a program that has made a world."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks


@pytest.mark.mpi
def test_an_uncaught_exception_ends_all_ranks(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = new_ranks.mpi(2, programs("raises.py"), timeout_s=30, may_fail=True)
    assert "ValueError: rank 1 has had enough" in output
    assert "exit code None" not in output


@pytest.mark.mpi
def test_a_failure_has_an_exit_code(new_ranks: Ranks, programs: Callable[[str], Path]) -> None:
    with pytest.raises(AssertionError, match=r"^exit code \d+ "):
        new_ranks.mpi(2, programs("raises.py"), timeout_s=30)
