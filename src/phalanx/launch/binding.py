"""Ranks that their launcher bound to fewer cores than it had: threads for them, and the flag that
frees them."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence

from phalanx.launch.cores import own_quota
from phalanx.launch.variables import launcher_process

_FLAGS = {  # by what the library calls itself
    "Open MPI": "mpiexec --bind-to none",
    "MPICH": "mpiexec -bind-to none",
    "Intel": "I_MPI_PIN=0",
}


def own_cores() -> frozenset[int]:
    """Return the cores that this process may run on; empty where the system does not tell."""
    return frozenset(_affinity(0))


def offered_cores(environ: Mapping[str, str]) -> int:
    """Return how many cores the launcher had for its ranks on this node; 0: it does not tell."""
    if "SLURM_CPUS_ON_NODE" in environ and "SLURM_STEP_ID" in environ:
        text = environ["SLURM_CPUS_ON_NODE"]
        return int(text) if text.isdecimal() else 0
    return len(_affinity(launcher_process()))


def cores_of_rank(local_ranks: int, environ: Mapping[str, str]) -> int:
    """Return how many cores this rank, one of `local_ranks` of its node, should compute on; at
    least 1.

    The cores that it is bound to are its own already; those of the launcher are for all.
    """
    own, offered, quota = len(own_cores()), offered_cores(environ), own_quota()
    own = own or os.cpu_count() or 1
    shared = [offered or own] + ([] if quota is None else [math.ceil(quota.cores)])
    return max(1, min(own, *(cores // local_ranks for cores in shared)))


def describe_binding(
    ranks: Sequence[Collection[int]], offered: int, library: str, environ: Mapping[str, str]
) -> str | None:
    """Return a line for the user when binding leaves cores of the node idle, else None.

    ranks: the cores of each rank of the node. offered: of the launcher, as `offered_cores`.
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
