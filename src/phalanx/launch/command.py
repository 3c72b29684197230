"""The command line and environment that start ranks with each MPI."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.launch.allocation import FORMER_HOST_FILE, HOST_FILE, max_local_ranks, slots_per_node
from phalanx.launch.installation import MpiInstallation, Vendor


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to start: its command line, and variables added to our environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    death_signal: signal.Signals = signal.SIGKILL
    """Signal sent to the process when we die; a launcher must end its ranks on it."""


def mpi_job(
    installation: MpiInstallation,
    ranks: int,
    program: Sequence[str],
    *,
    cores: int,
    environ: Mapping[str, str],
) -> Command:
    """Return the command that runs `program` on `ranks` ranks, on this node or in the allocation of
    a batch system."""
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return Command(
        words=tuple(mpi_command(installation, ranks, program, as_root=as_root)),
        environment=mpi_environment(installation.vendor, ranks, cores=cores, environ=environ),
        death_signal=_DEATH_SIGNALS[installation.vendor],
    )


# The signal on which a launcher ends its ranks, also those that ignore SIGTERM: after SIGKILL Open
# MPI leaves them running, after SIGTERM Hydra waits for them for ever.
_DEATH_SIGNALS: dict[Vendor, signal.Signals] = {
    "openmpi": signal.SIGTERM,
    "mpich": signal.SIGKILL,
    "impi": signal.SIGKILL,
    "other": signal.SIGTERM,
}


def mpi_command(
    installation: MpiInstallation, ranks: int, program: Sequence[str], *, as_root: bool
) -> list[str]:
    """Return the command line."""
    vendor = installation.vendor
    flags = list(_VENDOR_FLAGS[vendor])
    if vendor == "openmpi" and as_root:
        flags.append("--allow-run-as-root")
    return [str(installation.mpiexec), *flags, "-n", str(ranks), *program]


# Open MPI refuses more ranks than cores unless told; the flag changes nothing for fewer.
# No binding: a rank may use several threads, and other jobs may share the machine.
_VENDOR_FLAGS: dict[Vendor, tuple[str, ...]] = {
    "openmpi": ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
    "mpich": ("-bind-to", "none"),
    "impi": (),
    "other": (),
}


def mpi_environment(
    vendor: Vendor, ranks: int, *, cores: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return variables for the launcher and its ranks, without those that the user has set.

    cores: per node.
    """
    slots = slots_per_node(environ)
    several = len(slots) > 1
    wanted = _VENDOR_VARIABLES[vendor] | (_ON_NODES if several else _ON_ONE_NODE)[vendor]
    former = _FORMER_NAMES[vendor]
    wanted |= {now: environ[name] for name, now in former.items() if name in environ}
    if max_local_ranks(ranks, slots) > cores:
        wanted |= _OVERSUBSCRIBED_VARIABLES[vendor]
    return {name: value for name, value in wanted.items() if name not in environ}


_VENDOR_VARIABLES: dict[Vendor, dict[str, str]] = {
    # The one-sided component for UCX prints an error for every shared window before another
    # component is used: disable it.
    "openmpi": {"OMPI_MCA_osc": "^ucx"},
    "mpich": {},
    # With pinning, two jobs on one node share its first cores, one per rank.
    "impi": {"I_MPI_PIN": "0"},
    "other": {},
}
# On one node, skip the search for networks, which takes each rank a second.
_ON_ONE_NODE: dict[Vendor, dict[str, str]] = {
    "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
    "mpich": {},
    "impi": {"I_MPI_FABRICS": "shm"},
    "other": {},
}
# The launcher detects a dead link within seconds; by default within minutes.
_ON_NODES: dict[Vendor, dict[str, str]] = {
    "openmpi": {
        "PRTE_MCA_oob_tcp_keepalive_time": "5",
        "PRTE_MCA_oob_tcp_keepalive_intvl": "1",
        "PRTE_MCA_oob_tcp_keepalive_probes": "3",
    },
    "mpich": {},
    "impi": {},
    "other": {},
}
# Set by the MPI Operator of Kubernetes for Open MPI 4. Open MPI 5 reads other names; without them
# all ranks run on the launcher's pod.
_FORMER_NAMES: dict[Vendor, dict[str, str]] = {
    "openmpi": {
        FORMER_HOST_FILE: HOST_FILE,
        "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "PRTE_MCA_prte_keep_fqdn_hostnames",
    },
    "mpich": {},
    "impi": {},
    "other": {},
}
_OVERSUBSCRIBED_VARIABLES: dict[Vendor, dict[str, str]] = {
    # Open MPI counts the machine's cores, not those of the container.
    "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
    "mpich": {},
    "impi": {},
    "other": {},
}
