"""Cores of a rank: bound by its launcher or shared on its node, and the threads that fit."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, MutableMapping, Sequence

from phalanx.jobs.allocation import Allocation, allocation
from phalanx.jobs.cores import bound_cores, cpu_quota, usable_cores
from phalanx.jobs.detect import detect
from phalanx.jobs.variables import launcher_process

THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Each pool reads its variable once, when it is first used."""
OWN_POOLS = "PHALANX_THREAD_POOLS"
"""Pools of ranks on other nodes, of whose cores the launching machine knows nothing."""
CROWDED = 2
"""Ranks a core beyond which a line says so."""
OPEN_MPI_YIELDS = {"OMPI_MCA_mpi_yield_when_idle": "1"}
INTEL_MPI_YIELDS = {"I_MPI_THREAD_YIELD": "2"}
"""Variables for more ranks than cores: they count the machine's cores, not those of a container."""
_FLAGS = {  # keys: names of libraries
    "Open MPI": "mpiexec --bind-to none",
    "MPICH": "mpiexec -bind-to none",
    "Intel": "I_MPI_PIN=0",
}


def launcher_cores(environ: Mapping[str, str]) -> int:
    """Return the number of cores that the launcher has for its ranks on this node; 0: unknown."""
    if "SLURM_CPUS_ON_NODE" in environ and "SLURM_STEP_ID" in environ:
        text = environ["SLURM_CPUS_ON_NODE"]
        return int(text) if text.isdecimal() else 0
    try:
        return len(os.sched_getaffinity(launcher_process()))
    except OSError:
        return 0


def cores_of_rank(local_ranks: int, environ: Mapping[str, str]) -> int:
    """Return the number of cores for this rank, one of `local_ranks` on its node; at least 1.

    Cores that it is bound to are exclusive; those of the launcher are shared by all ranks.
    """
    own = len(bound_cores())
    return max(1, min(own, _shared_cores(own, environ) // local_ranks))


def _shared_cores(own: int, environ: Mapping[str, str]) -> int:
    """Return the number of cores that all ranks of this node share. own: of this rank."""
    offered, quota = launcher_cores(environ) or own, cpu_quota()
    return offered if quota is None else min(offered, math.ceil(quota.cores))


def pool_threads(environ: Mapping[str, str]) -> int | None:
    """Return the threads that the user has set for a pool, by the first one; None for none.

    They count for all pools: PyTorch takes MKL's number, where OpenMP's is what users set.
    """
    numbers = (environ.get(name, "").partition(",")[0].strip() for name in THREAD_POOLS)
    return next((int(number) for number in numbers if number.isdecimal() and int(number)), None)


def threads_of_rank(ranks: int, nodes: Allocation) -> int | None:
    """Return the compute threads of a rank that is about to be started: as many as a variable of
    the user's says, or a share of this machine's cores; None: each rank finds its own, on other
    nodes."""
    asked = pool_threads(os.environ)
    if asked is not None or nodes.has_others:
        return asked
    return max(1, usable_cores() // nodes.max_local_ranks(ranks))


def thread_variables(threads: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of thread pools for ranks that are about to be started.

    threads: of each rank; None: as many as its own node has for it, known here for this one alone.
    """
    found = {} if threads is None else dict.fromkeys(THREAD_POOLS, str(threads))
    if allocation(environ).has_others:
        found[OWN_POOLS] = " ".join(THREAD_POOLS) if threads is None else ""
    return found


def use_own_cores(environ: MutableMapping[str, str]) -> int | None:
    """Set what depends on the cores of this rank's node, if the launching machine left that open.

    Call it before PyTorch and MPI are loaded. Returns: threads of this rank; None if they are set.
    """
    if OWN_POOLS not in environ:
        return None
    launched = detect(environ)
    local_ranks = (launched.local_world_size if launched else None) or 1
    if local_ranks > _shared_cores(len(bound_cores()), environ):
        environ.update(OPEN_MPI_YIELDS | INTEL_MPI_YIELDS | dict(environ))
    pools = environ.pop(OWN_POOLS).split()
    threads = cores_of_rank(local_ranks, environ)
    environ.update(dict.fromkeys(pools, str(threads)))
    return threads if pools else None


def describe_places(ranks: int, nodes: Allocation) -> list[str]:
    """Return the line that says which nodes `ranks` ranks run on and who named them, none for this
    machine, and one where they have to take turns on it."""
    lines, cores = [nodes.describe(ranks)] if nodes.nodes else [], usable_cores()
    if not nodes.has_others and ranks > CROWDED * cores:
        count = f"{cores} core{'s' * (cores != 1)}"
        lines.append(
            f"{ranks} ranks share {count} of this machine; with --ranks {cores} each rank has a "
            "core"
        )
    return lines


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
        f"{each} bound to {most} of the {offered} cores of its node; {offered - used} cores stay "
        f"idle. To use all: {_flag(library, environ)}"
    )


def _flag(library: str, environ: Mapping[str, str]) -> str:
    if "SLURM_STEP_ID" in environ and "OMPI_COMM_WORLD_RANK" not in environ:
        return "srun --cpus-per-task=N, or srun --cpu-bind=none"
    found = (flag for name, flag in _FLAGS.items() if name in library)
    return next(found, "start them without binding")
