"""Ends of a program that has made a world."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks


@pytest.mark.mpi
def test_an_uncaught_exception_ends_all_ranks(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    """At once, where the others would wait for 300 s, and MPI for them without end."""
    with pytest.raises(AssertionError, match=r"^exit code \d+ ") as failed:
        new_ranks.mpi(2, programs("raises.py"), timeout_s=30)
    assert "ValueError: rank 1 has had enough" in str(failed.value)
