"""Core binding of ranks by their launcher: threads per rank, and the flag that disables binding."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence

from phalanx.launch.cores import cpu_quota
from phalanx.launch.variables import launcher_process

_FLAGS = {  # by the library's name
    "Open MPI": "mpiexec --bind-to none",
    "MPICH": "mpiexec -bind-to none",
    "Intel": "I_MPI_PIN=0",
}


def bound_cores() -> frozenset[int]:
    """Return the cores that this process is bound to; empty if the system does not report them."""
    return frozenset(_affinity(0))


def launcher_cores(environ: Mapping[str, str]) -> int:
    """Return the number of cores that the launcher has for its ranks on this node; 0: unknown."""
    if "SLURM_CPUS_ON_NODE" in environ and "SLURM_STEP_ID" in environ:
        text = environ["SLURM_CPUS_ON_NODE"]
        return int(text) if text.isdecimal() else 0
    return len(_affinity(launcher_process()))


def cores_of_rank(local_ranks: int, environ: Mapping[str, str]) -> int:
    """Return the number of cores for this rank, one of `local_ranks` on its node; at least 1.

    Cores that it is bound to are exclusive; those of the launcher are shared by all ranks.
    """
    own, offered, quota = len(bound_cores()), launcher_cores(environ), cpu_quota()
    own = own or os.cpu_count() or 1
    shared = [offered or own] + ([] if quota is None else [math.ceil(quota.cores)])
    return max(1, min(own, *(cores // local_ranks for cores in shared)))


def describe_binding(
    ranks: Sequence[Collection[int]], offered: int, library: str, environ: Mapping[str, str]
) -> str | None:
    """Return a warning if binding leaves cores of the node idle, else None.

    ranks: the cores of each rank of the node. offered: of the launcher, as `launcher_cores`.
    """
    used = len(set().union(*ranks))
    if used == 0 or used >= offered:
        return None
    most = max(len(cores) for cores in ranks)
    each = "each rank is" if len(ranks) > 1 else "the rank is"
    return (
        f"{each} bound to {most} of the {offered} cores of its node, of which {offered - used} "
        f"stay idle; to let ranks use all: {_flag(library, environ)}"
    )


def _flag(library: str, environ: Mapping[str, str]) -> str:
    if "SLURM_STEP_ID" in environ and "OMPI_COMM_WORLD_RANK" not in environ:
        return "srun --cpus-per-task=N, or srun --cpu-bind=none"
    found = (flag for name, flag in _FLAGS.items() if name in library)
    return next(found, "start them without binding")


def _affinity(process: int) -> set[int]:
    try:
        return os.sched_getaffinity(process)
    except (AttributeError, OSError):
        return set()
