"""The command that starts ranks, for each MPI, with what each of them needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.launch.allocation import FORMER_HOST_FILE, HOST_FILE, most_local_ranks, slots_per_node
from phalanx.launch.installation import MpiInstallation, Vendor


@dataclass(frozen=True, kw_only=True)
class Command:
    """One process to start: its words, and what it gets on top of the environment of ours."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    death_signal: signal.Signals = signal.SIGKILL
    """What the process gets when we die. A launcher must be able to end its ranks on it."""


def mpi_job(
    installation: MpiInstallation,
    ranks: int,
    program: Sequence[str],
    *,
    cores: int,
    environ: Mapping[str, str],
) -> Command:
    """`program` on `ranks` ranks through the launcher of `installation`: of this node, or of the
    allocation that a batch system has granted."""
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return Command(
        words=tuple(mpi_command(installation, ranks, program, as_root=as_root)),
        environment=mpi_environment(installation.vendor, ranks, cores=cores, environ=environ),
        death_signal=_DEATH_SIGNALS[installation.vendor],
    )


# What makes a launcher take its ranks with it, also those that ignore SIGTERM. Killed outright,
# Open MPI leaves them running; ended softly, Hydra waits for them for ever.
_DEATH_SIGNALS: dict[Vendor, signal.Signals] = {
    "openmpi": signal.SIGTERM,
    "mpich": signal.SIGKILL,
    "impi": signal.SIGKILL,
    "other": signal.SIGTERM,
}


def mpi_command(
    installation: MpiInstallation, ranks: int, program: Sequence[str], *, as_root: bool
) -> list[str]:
    """The words of the command line."""
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
    """Variables for the launcher and its ranks; what the user has set in `environ` stays.

    cores: of a node.
    """
    slots = slots_per_node(environ)
    several = len(slots) > 1
    wanted = _VENDOR_VARIABLES[vendor] | (_ON_NODES if several else _ON_ONE_NODE)[vendor]
    former = _FORMER_NAMES[vendor]
    wanted |= {now: environ[name] for name, now in former.items() if name in environ}
    if most_local_ranks(ranks, slots) > cores:
        wanted |= _OVERSUBSCRIBED_VARIABLES[vendor]
    return {name: value for name, value in wanted.items() if name not in environ}


_VENDOR_VARIABLES: dict[Vendor, dict[str, str]] = {
    # The one-sided component for UCX prints an error whenever a shared window is made, then
    # another takes over: leave it out from the start.
    "openmpi": {"OMPI_MCA_osc": "^ucx"},
    "mpich": {},
    # Pinned, two jobs of two ranks share two cores of many, and every rank is left with one.
    "impi": {"I_MPI_PIN": "0"},
    "other": {},
}
# Where all ranks are on this node no network is looked for, which spares each rank a second.
_ON_ONE_NODE: dict[Vendor, dict[str, str]] = {
    "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
    "mpich": {},
    "impi": {"I_MPI_FABRICS": "shm"},
    "other": {},
}
# A link that is dead is noticed by its launcher after seconds; by default after minutes.
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
# Set by the MPI Operator of Kubernetes, and read by Open MPI 4; from 5 on others take their place,
# without which all ranks run on the launcher's own pod.
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
    # Open MPI counts the machine's cores, not those that a container grants.
    "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
    "mpich": {},
    "impi": {},
    "other": {},
}
