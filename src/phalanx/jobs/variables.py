"""The variables that PyTorch programs read (`RANK`, `MASTER_ADDR`, …), for ranks of MPI launchers.

torchrun sets them, `mpiexec` and `srun` do not. They are derived from the environment and, if that
names no job, from the launcher's process id, without communication.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, MutableMapping

from phalanx.jobs.allocation import expand_names
from phalanx.jobs.detect import Launched, detect_mpi
from phalanx.jobs.leftovers import name_of, parent_of

ENABLE_VARIABLE = "PHALANX_ENV"  # "0": set nothing
RENDEZVOUS = "PHALANX_RENDEZVOUS"
"""A file through which ranks without MPI find each other."""
# Names and values set by Phalanx, by which a launcher below a rank tells them from a user's.
MARKER_VARIABLE = "PHALANX_ENV_SET"

_RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000  # below the range of outgoing connections
_LAUNCHERS = ("hydra_pmi_proxy", "hydra_bstrap_pr", "mpiexec", "mpirun", "prterun", "prted")
_MAX_PARENTS = 8


def set_variables(environ: MutableMapping[str, str]) -> None:
    """Set the variables that an MPI launcher leaves out.

    If the user has set any of RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE, nothing is set, so
    that two numberings never mix. MASTER_ADDR and MASTER_PORT are set if missing.

    Raises: UserError when the launcher's own variables make no sense.
    """
    if environ.get(ENABLE_VARIABLE, "1") == "0":
        return
    launched = detect_mpi(environ)
    if launched is None:
        return
    _forget(environ)
    if any(name in environ for name in _RANK_NAMES):
        return
    chosen = {
        name: value
        for name, value in variables_of(launched, environ).items()
        if name not in environ
    }
    environ.update(chosen)
    environ[MARKER_VARIABLE] = " ".join(f"{name}={value}" for name, value in chosen.items())


def variables_of(launched: Launched, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one rank, as far as its launcher reports them.

    The port is the same on all ranks of a job and rarely that of another job.
    """
    found = {"RANK": launched.rank, "WORLD_SIZE": launched.world_size}
    if launched.local_rank is not None:
        found["LOCAL_RANK"] = launched.local_rank
    if launched.local_world_size is not None:
        found["LOCAL_WORLD_SIZE"] = launched.local_world_size
    texts = {name: str(number) for name, number in found.items()}
    on_one_node = launched.local_world_size == launched.world_size
    hosts = ["127.0.0.1"] if on_one_node else expand_names(environ.get("SLURM_STEP_NODELIST", ""))
    job = _job(environ) or (f"launcher {launcher_process()}" if on_one_node else None)
    if hosts and job:
        texts["MASTER_ADDR"] = hosts[0]
        texts["MASTER_PORT"] = str(_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS)
    return texts


def _job(environ: Mapping[str, str]) -> str | None:
    """Return the launcher's name of the job, which all its ranks see."""
    for name in ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID"):
        if name in environ:
            return environ[name]
    if "SLURM_STEP_ID" in environ:
        return f"{environ.get('SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']}"
    return None


def launcher_process() -> int:
    """Return the process id of the launcher above this rank, past the shells between them."""
    for process in parent_processes(_MAX_PARENTS):
        if name_of(process) in _LAUNCHERS:
            return process
    return os.getppid()


def parent_processes(count: int) -> list[int]:
    """Return the process ids of this one's parent, the parent of that, and so on."""
    found = [os.getppid()]
    while len(found) < count and (parent := parent_of(found[-1])):
        found.append(parent)
    return found


def is_users(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a variable is set, and not by Phalanx."""
    chosen = f"{name}={environ.get(name)}"
    return name in environ and chosen not in environ.get(MARKER_VARIABLE, "").split()


def _forget(environ: MutableMapping[str, str]) -> None:
    """Remove variables that Phalanx set in a parent process, unless changed since: a launcher in
    between may have assigned new ranks."""
    for word in environ.pop(MARKER_VARIABLE, "").split():
        name, _, value = word.partition("=")
        if environ.get(name) == value:
            del environ[name]
