"""Skips where MPI ends all ranks when one dies."""

import os

import pytest

from phalanx.jobs.installation import find_mpi


@pytest.fixture
def openmpi() -> None:
    if find_mpi(os.environ).vendor != "openmpi":
        pytest.skip("only Open MPI goes on when a rank dies")
