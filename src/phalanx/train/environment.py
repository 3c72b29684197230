"""Where a run takes place."""

from __future__ import annotations

from phalanx.launch.cores import usable_cores
from phalanx.records import environment
from phalanx.records.schema import Environment


def describe_environment(mpi: str | None) -> Environment:
    """mpi: name and version of the library in use, None for a run without MPI."""
    return environment.describe_environment(mpi, cores=usable_cores())
