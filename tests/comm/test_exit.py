"""Ends of a program that has made a world."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.jobs.installation import find_mpi
from tests.conftest import Programs, Ranks, long


@pytest.mark.mpi
def test_an_uncaught_exception_ends_all_ranks(new_ranks: Ranks, programs: Programs) -> None:
    """At once, where the others would wait for 300 s, and MPI for them without end."""
    with pytest.raises(AssertionError, match=r"^exit code \d+ ") as failed:
        new_ranks.mpi(2, programs("raises.py"), timeout_s=30)
    assert "ValueError: rank 1 has had enough" in str(failed.value)


@pytest.mark.mpi
@pytest.mark.parametrize("method", ["forkserver", long("spawn")])
def test_workers_are_no_ranks(new_ranks: Ranks, programs: Programs, method: str) -> None:
    """MPI would crash in them, or wait for itself."""
    output = new_ranks.mpi(1, programs("workers.py"), method)
    assert "this process is a worker that a rank started" in output
    assert "the worker ended with " in output
    assert "the worker ended with 0" not in output


@pytest.mark.mpi
def test_processes_that_no_launcher_started_leave_no_segment(
    programs: Programs,
) -> None:
    """Open MPI 5.0.11 leaves 16 MB of shared memory each time."""
    words = [sys.executable, str(programs("own_segment.py"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("segments: ") == 2, "in a process, and in one that it starts"
    names = [line.partition(": ")[2].split() for line in done.stdout.splitlines()]
    if find_mpi(os.environ).vendor == "openmpi":
        assert all(names)
    assert not [path for each in names for path in each if Path(path).exists()]
