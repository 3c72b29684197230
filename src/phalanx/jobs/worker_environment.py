"""Environment of worker processes of a rank, in which MPI cannot start as that rank.

A worker by forkserver or spawn imports the program. Where that imports mpi4py.MPI, MPI would start
by the launcher's variables: as the very rank, whose place is taken, which hangs or ends both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

OF_RANKS = (
    *("OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PALS_"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEP", "SLURM_PMI"),
    *("SLURM_SRUN", "SLURM_TASK", "SLURM_LAUNCH", "SLURM_MPI"),
)
"""First letters of variables by which launchers tell a process which rank it is."""


@contextmanager
def worker_environment() -> Iterator[None]:
    """Start worker processes within it: MPI in them is one of a single process.

    Forkserver keeps the environment in which it began: here, unless the program was first.
    """
    hidden = {name: value for name, value in os.environ.items() if name.startswith(OF_RANKS)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
