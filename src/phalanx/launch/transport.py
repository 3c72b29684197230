"""The transport between nodes, chosen before MPI is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping

from phalanx.launch.detect import Launched, detect
from phalanx.launch.installation import MpiInstallation, find_wheel
from phalanx.launch.srun import LIBRARY_CHOICES

MPICH_TRANSPORT = "MPIR_CVAR_CH4_NETMOD"


def choose_transport(environ: MutableMapping[str, str]) -> None:
    """Set the transport of a rank whose job has several nodes, if nothing is chosen."""
    if any(name in environ for name in (MPICH_TRANSPORT, *LIBRARY_CHOICES)):
        return
    launched = detect(environ)
    if launched is not None and launched.launcher != "torchrun":
        environ.update(variables_for_ranks(find_wheel(), launched))


def variables_for_ranks(wheel: MpiInstallation | None, launched: Launched) -> dict[str, str]:
    """Return what makes the MPICH from PyPI use libfabric between nodes.

    Over UCX, the wheel's default, MPICH 5.0.2 loses messages to a receive from any source as soon
    as they come from two nodes.
    """
    is_on_one_node = launched.local_world_size == launched.world_size
    if wheel is None or wheel.vendor != "mpich" or is_on_one_node:
        return {}
    return {MPICH_TRANSPORT: "ofi"}
