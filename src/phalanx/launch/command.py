"""The command line and environment that start ranks with each MPI."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.launch.allocation import (
    FORMER_HOST_FILE,
    HOST_FILE,
    THIS_MACHINE,
    Allocation,
    allocation,
    max_local_ranks,
)
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
    nodes = allocation(environ)
    return Command(
        words=tuple(mpi_command(installation, ranks, program, as_root=as_root, nodes=nodes)),
        environment=mpi_environment(installation.vendor, ranks, cores=cores, environ=environ),
        death_signal=_LAUNCHERS[installation.vendor].death_signal,
    )


def mpi_command(
    installation: MpiInstallation,
    ranks: int,
    program: Sequence[str],
    *,
    as_root: bool,
    nodes: Allocation = THIS_MACHINE,
) -> list[str]:
    """Return the command line."""
    flags = list(_LAUNCHERS[installation.vendor].flags)
    if installation.vendor == "openmpi" and as_root:
        flags.append("--allow-run-as-root")
    if nodes.is_named:
        flags += _host_flags(installation.vendor, ranks, nodes)
    if nodes.has_others and installation.vendor == "openmpi":
        flags += [word for name in _EXPORTED for word in ("-x", name)]
    return [str(installation.mpiexec), *flags, "-n", str(ranks), *program]


def _host_flags(vendor: Vendor, ranks: int, nodes: Allocation) -> list[str]:
    """Return the flags that name the nodes."""
    placed = zip(nodes.nodes, nodes.placed(ranks), strict=True)
    hosts = ",".join(f"{node.name}:{here}" for node, here in placed if here)
    return ["-H" if vendor == "openmpi" else "-hosts", hosts]


_EXPORTED = ("PHALANX_*", "PYTHON*", "OMP_*", "MKL_*", "OPENBLAS_*", "TORCH_*")
"""Open MPI takes no variable but its own to other nodes; Hydra takes all."""


def mpi_environment(
    vendor: Vendor, ranks: int, *, cores: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return variables for the launcher and its ranks, without those that the user has set.

    cores: per node.
    """
    slots = allocation(environ).slots
    launcher = _LAUNCHERS[vendor]
    wanted = {**launcher.always, **(launcher.on_nodes if len(slots) > 1 else launcher.on_one_node)}
    names = launcher.former_names.items()
    wanted |= {now: environ[former] for former, now in names if former in environ}
    if max_local_ranks(ranks, slots) > cores:
        wanted |= launcher.oversubscribed
    return {name: value for name, value in wanted.items() if name not in environ}


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """Signal, flags and variables of one MPI's launcher."""

    death_signal: signal.Signals
    """Ends the ranks too, also those that ignore SIGTERM: after SIGKILL Open MPI leaves them,
    after SIGTERM Hydra waits for them for ever."""
    flags: tuple[str, ...] = ()
    """No binding: a rank may use several threads, and other jobs may share the machine."""
    always: Mapping[str, str] = field(default_factory=dict)
    on_one_node: Mapping[str, str] = field(default_factory=dict)
    """Skip the search for networks, which takes each rank a second."""
    on_nodes: Mapping[str, str] = field(default_factory=dict)
    """The launcher detects a dead link within seconds; by default within minutes."""
    former_names: Mapping[str, str] = field(default_factory=dict)
    """Set by the MPI Operator of Kubernetes for Open MPI 4, by the names that Open MPI 5 reads;
    without them all ranks run on the launcher's pod."""
    oversubscribed: Mapping[str, str] = field(default_factory=dict)


_LAUNCHERS: dict[Vendor, _Launcher] = {
    "openmpi": _Launcher(
        death_signal=signal.SIGTERM,
        # It refuses more ranks than cores unless told; the flag changes nothing for fewer.
        flags=("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
        # The one-sided component for UCX prints an error for every shared window before another
        # component is used: disable it.
        always={"OMPI_MCA_osc": "^ucx"},
        on_one_node={"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
        on_nodes={
            "PRTE_MCA_oob_tcp_keepalive_time": "5",
            "PRTE_MCA_oob_tcp_keepalive_intvl": "1",
            "PRTE_MCA_oob_tcp_keepalive_probes": "3",
        },
        former_names={
            FORMER_HOST_FILE: HOST_FILE,
            "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "PRTE_MCA_prte_keep_fqdn_hostnames",
        },
        # It counts the machine's cores, not those of the container.
        oversubscribed={"OMPI_MCA_mpi_yield_when_idle": "1"},
    ),
    "mpich": _Launcher(death_signal=signal.SIGKILL, flags=("-bind-to", "none")),
    # With pinning, two jobs on one node share its first cores, one per rank.
    "impi": _Launcher(
        death_signal=signal.SIGKILL,
        always={"I_MPI_PIN": "0"},
        on_one_node={"I_MPI_FABRICS": "shm"},
    ),
    "other": _Launcher(death_signal=signal.SIGTERM),
}


def local_commands(
    ranks: int, program: Sequence[str], *, environ: Mapping[str, str]
) -> list[Command]:
    """Return one command per rank; variables set in `environ` are kept."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if "GLOO_SOCKET_IFNAME" not in environ:
        # Gloo would resolve the host's name, which need not lead anywhere in a container.
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    return [
        Command(
            words=tuple(program),
            environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
