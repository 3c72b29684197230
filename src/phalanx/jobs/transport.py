"""The transport between nodes, chosen before MPI is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.jobs.detect import Launched, detect
from phalanx.jobs.srun import LIBRARY_CHOICES

if TYPE_CHECKING:  # every rank imports this, and few need the list of packages
    from phalanx.jobs.installation import MpiInstallation

MPICH_TRANSPORT = "MPIR_CVAR_CH4_NETMOD"
OPEN_MPI_TRANSPORTS = "OMPI_MCA_btl"
ROOT = Path("/")
_DEVICES = ("sys/class/infiniband", "sys/class/cxi", "dev/kgni0")
"""Of networks that libfabric knows beside TCP: InfiniBand, Omni-Path, EFA; Slingshot; Aries."""


def choose_transport(environ: MutableMapping[str, str]) -> None:
    """Set the transport of a rank whose job has several nodes, if nothing is chosen."""
    skip_unneeded_networks(environ)
    if any(name in environ for name in (MPICH_TRANSPORT, *LIBRARY_CHOICES)):
        return
    launched = detect(environ)
    if launched is not None and launched.launcher not in ("openmpi", "torchrun"):
        from phalanx.jobs.installation import find_wheel

        environ.update(variables_for_ranks(find_wheel(), launched))


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


def variables_for_ranks(wheel: MpiInstallation | None, launched: Launched) -> dict[str, str]:
    """Return what makes the MPICH from PyPI use libfabric between nodes.

    Over UCX, the wheel's default, MPICH 5.0.2 loses messages to a receive from any source as soon
    as they come from two nodes.
    """
    is_on_one_node = launched.local_world_size == launched.world_size
    if wheel is None or wheel.vendor != "mpich" or is_on_one_node:
        return {}
    return {MPICH_TRANSPORT: "ofi"}
