"""Ends of a program that has made a world."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.launch.installation import find_mpi
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


SINGLE = """
import os
from phalanx.comm.mpi import mpi
from phalanx.launch.leftovers import leftovers_of
mpi()
print(*leftovers_of([os.getpid()], []))
"""


def test_a_process_that_no_launcher_started_leaves_no_segment() -> None:
    """Open MPI 5.0.11 leaves 16 MB of shared memory each time."""
    words = [sys.executable, "-c", SINGLE]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    if find_mpi(os.environ).vendor == "openmpi":
        assert done.stdout.strip()
    assert not [path for path in done.stdout.split() if Path(path).exists()]
