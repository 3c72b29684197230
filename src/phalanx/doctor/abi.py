"""Check of the ABI that mpi4py was built for: which libraries and launchers go with it."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.doctor.examine import Finding, ok

OF_MPICH = ("MPICH", "Intel(R) MPI", "MVAPICH")
"""Names of libraries whose programs run with each other's library."""


def judge_abi(library: str, version: Sequence[int], launcher: str) -> Finding:
    """Name the ABI, what may take the place of the library, and the launcher that belongs to it.

    library: the name that the library gives itself. version: of the standard ABI that mpi4py was
    built for, negative for another ABI. launcher: the MPI whose mpiexec started the ranks.
    """
    if version[0] > 0:
        abi = f"the standard {version[0]}.{version[1]}; any libmpi_abi.so may stand in"
    elif library.startswith("Open MPI"):
        abi = "of Open MPI; another Open MPI of this series may stand in"
    elif any(name in library for name in OF_MPICH):
        abi = "of MPICH; Cray MPICH, Intel MPI or MVAPICH may stand in"
    else:
        return ok("MPI ABI", f"only that of the library, with the mpiexec of {launcher}")
    return ok("MPI ABI", f"{abi}, with its own launcher; here mpiexec of {launcher}")
