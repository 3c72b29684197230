"""Ends of a program that has made a world."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, long


@pytest.mark.mpi
def test_an_uncaught_exception_ends_all_ranks(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    """At once, where the others would wait for 300 s, and MPI for them without end."""
    with pytest.raises(AssertionError, match=r"^exit code \d+ ") as failed:
        new_ranks.mpi(2, programs("raises.py"), timeout_s=30)
    assert "ValueError: rank 1 has had enough" in str(failed.value)


@pytest.mark.mpi
@pytest.mark.parametrize("method", ["forkserver", long("spawn")])
def test_workers_are_no_ranks(
    new_ranks: Ranks, programs: Callable[[str], Path], method: str
) -> None:
    """MPI would crash in them, or wait for itself."""
    output = new_ranks.mpi(1, programs("workers.py"), method)
    assert "this process is a worker that a rank has started" in output
    assert "the worker ended with " in output
    assert "the worker ended with 0" not in output
