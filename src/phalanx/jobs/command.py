"""The command line and environment that start ranks with each MPI."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.jobs import shield as shield_program
from phalanx.jobs.allocation import (
    FORMER_HOST_FILE,
    HOST_FILE,
    Allocation,
    allocation,
    granted,
)
from phalanx.jobs.binding import INTEL_MPI_YIELDS, OPEN_MPI_YIELDS
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.installation import MpiInstallation, Vendor
from phalanx.jobs.networks import interface_for
from phalanx.jobs.survival import ALWAYS, FLAGS, ON_NODES, check_survival


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to start: its command line, and variables added to our environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    death_signal: signal.Signals = signal.SIGKILL
    """Signal sent to the process when we die; a launcher must end its ranks on it."""
    end_signal: signal.Signals = signal.SIGTERM
    """Signal that asks the process to end, with its ranks."""
    session_variable: str | None = None
    """Variable by which a launcher is told where to keep its own files; None: it has none."""


def mpi_job(
    installation: MpiInstallation,
    ranks: int,
    program: Sequence[str],
    *,
    environ: Mapping[str, str],
    survive: bool = False,
) -> Command:
    """Return the command that runs `program` on `ranks` ranks, on this machine or on the nodes that
    the user or a batch system names.

    survive: the other ranks continue when a rank dies. Raises: UserError where they cannot.
    """
    if survive:
        check_survival(installation, environ)
    vendor, cores = installation.vendor, usable_cores()
    command = Command(
        words=tuple(_words(installation, ranks, program, environ, survive=survive)),
        environment=mpi_environment(vendor, ranks, cores=cores, environ=environ, survive=survive),
        death_signal=_LAUNCHERS[vendor].death_signal,
        session_variable=_LAUNCHERS[vendor].session_variable,
    )
    is_shielded = vendor == "openmpi" and granted(environ).nodes
    return _shielded(command, installation, environ) if is_shielded else command


def _shielded(
    command: Command, installation: MpiInstallation, environ: Mapping[str, str]
) -> Command:
    """Return a command whose launcher and daemons SIGTERM does not end: a batch system sends it to
    them as well as to the ranks, which save and stop."""
    shield = (sys.executable, "-I", "-S", shield_program.__file__)
    daemon, added = installation.mpiexec.with_name("prted"), {}
    is_free = _DAEMON not in environ and not starts_by_ssh("openmpi", environ)
    if is_free and daemon.exists():
        added[_DAEMON] = " ".join([*shield, str(daemon)])
    return replace(
        command,
        words=(*shield, *command.words),
        environment={**command.environment, **added},
        death_signal=signal.SIGINT,
        end_signal=signal.SIGINT,
    )


def _words(
    installation: MpiInstallation,
    ranks: int,
    program: Sequence[str],
    environ: Mapping[str, str],
    *,
    survive: bool,
) -> list[str]:
    """Return the command line of the launcher."""
    vendor, nodes = installation.vendor, allocation(environ)
    flags = list(_LAUNCHERS[vendor].flags)
    if vendor == "openmpi":
        exported = exported_variables(environ) if nodes.has_others else ()
        flags += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        flags += FLAGS if survive else ()
        flags += [word for name in exported for word in ("-x", name)]
    if nodes.needs_flags and (nodes.is_named or not nodes.is_one_machine):
        used = nodes.used(ranks)
        placed = [here for _, here in used]
        # Option -ppn gives every node but the last the same number of ranks, and the last no more.
        if vendor == "impi" and (set(placed[:-1]) - {placed[0]} or placed[-1] > placed[0]):
            return [str(installation.mpiexec), *flags, *_one_by_one(used, program)]
        flags += _host_flags(vendor, used, is_here=not nodes.has_others)
    return [str(installation.mpiexec), *flags, "-n", str(ranks), *program]


def _host_flags(vendor: Vendor, used: Sequence[tuple[str, int]], *, is_here: bool) -> list[str]:
    """Return the flags that name the nodes. used: names, and how many ranks each is to run."""
    hosts = ",".join(f"{name}:{here}" for name, here in used)
    if vendor == "openmpi":
        return ["-H", hosts]
    if vendor == "impi":
        # It takes `n0:2` as a name of its own and has as many ranks there as the node has cores.
        names = ",".join(name for name, _ in used)
        return ["-hosts", names, "-ppn", str(used[0][1])]
    return ["-launcher", "fork"] if is_here and vendor == "mpich" else ["-hosts", hosts]


def _one_by_one(used: Sequence[tuple[str, int]], program: Sequence[str]) -> list[str]:
    """Return the arguments of Hydra that start `program` on each node separately, as one job."""
    words: list[str] = []
    for name, here in used:
        words += [*([":"] if words else []), "-host", name, "-n", str(here), *program]
    return words


_FAMILIES = ("PHALANX_*", "PYTHON*", "OMP_*", "MKL_*", "OPENBLAS_*", "GLIBC_*")
"""Variables that are exported also where they are set later than the command line is made."""
_NOT_EXPORTED = re.compile(
    r"(OMPI|PRTE|PMIX|OPAL|PMI|SLURM|SSH|XDG|DBUS|BASH_FUNC)_?.*|PBS_.*|LSB_.*|LS_.*|COLUMNS|LINES"
    r"|DISPLAY|XAUTHORITY|HOSTNAME|HOST|PWD|OLDPWD|SHLVL|TERM|TMPDIR|_|LD_LIBRARY_PATH|MAIL|.*\W.*"
    r"|HOME|USER|LOGNAME|SHELL",
    re.DOTALL,
)
"""Variables of the launchers, which they send themselves, and of this machine, terminal or user:
of a node that is reached by ssh the user may be another one."""


TUNABLES = "GLIBC_TUNABLES"


def exported_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that Open MPI is to take to other nodes: by itself it takes its own
    alone, where Hydra and srun take all."""
    prefixes = tuple(family.rstrip("*") for family in _FAMILIES)
    names = [
        name
        for name in sorted(environ)
        if not name.startswith(prefixes) and not _NOT_EXPORTED.fullmatch(name)
    ]
    return [*_FAMILIES, *names]


def mpi_environment(
    vendor: Vendor, ranks: int, *, cores: int, environ: Mapping[str, str], survive: bool = False
) -> dict[str, str]:
    """Return variables for the launcher and its ranks, without those that the user has set.

    cores: of this machine; ranks elsewhere see to theirs (`binding.use_own_cores`).
    """
    nodes, launcher = allocation(environ), _LAUNCHERS[vendor]
    wanted = dict(launcher.always)
    wanted |= launcher.on_one_node if nodes.is_one_machine else launcher.on_nodes
    if survive:
        wanted |= ALWAYS | ({} if nodes.is_one_machine else ON_NODES)
    wanted |= _translated(vendor, environ)
    if nodes.has_others and starts_by_ssh(vendor, environ):
        wanted |= launcher.by_ssh
        if vendor == "openmpi" and len(nodes.nodes) > _PRTE_RADIX:
            wanted["PRTE_MCA_rml_base_radix"] = str(len(nodes.nodes))
    if vendor == "impi" and nodes.has_others:
        # Name an interface: else `mpiexec` looks up its host name, which addresses may not resolve.
        interface = interface_for(node.name for node in nodes.nodes)
        wanted |= {} if interface is None else {"I_MPI_HYDRA_IFACE": interface}
    if nodes.is_named:
        is_granted = _are_granted(nodes, granted(environ))
        wanted |= launcher.by_user if is_granted else launcher.past_batch_system
    if not nodes.has_others and nodes.max_local_ranks(ranks) > cores:
        wanted |= launcher.oversubscribed
    return {name: value for name, value in wanted.items() if name not in environ}


def memory_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which glibc's malloc asks for huge pages, unless the user has set it.

    Steps of a few milliseconds differ by a quarter from start to start on small pages, for as long
    as the processes live: by which physical ones they got. Other C libraries do not read it.
    """
    return {} if TUNABLES in environ else {TUNABLES: "glibc.malloc.hugetlb=1"}


def _translated(vendor: Vendor, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables by the names that this version reads."""
    names = _LAUNCHERS[vendor].former_names.items()
    return {now: environ[former] for former, now in names if former in environ}


def starts_by_ssh(vendor: Vendor, environ: Mapping[str, str]) -> bool:
    """Return whether the launcher starts processes on other nodes by ssh, not by a batch system or
    an agent (Kubernetes)."""
    batch, known = granted(environ), {**_translated(vendor, environ), **environ}
    agents = (known.get(name, "ssh") for name in _AGENTS)
    if any(Path(agent.split(" ")[0]).name != "ssh" for agent in agents):
        return False
    return not (batch.has_remote_start and _are_granted(allocation(environ), batch))


def _are_granted(nodes: Allocation, batch: Allocation) -> bool:
    """Return whether the nodes are of a batch system's allocation, which then starts them."""
    names = {node.name for node in batch.nodes}
    return not names or all(node.name in names for node in nodes.nodes)


_SSH = "-o ConnectTimeout=10 -o ServerAliveInterval=3 -o ServerAliveCountMax=3"
"""A lost node or link is noticed within 9 to 12 seconds. Not sooner: what TCP sent while a link was
away for 5 seconds it may send again only 6.2 seconds later, as it doubles its intervals of 0.2."""
_PRTE_RADIX = 64
"""Nodes that Open MPI's launcher reaches directly. Its daemons start the others, and get options of
ssh split into words, so that they fail: with such options it must reach all."""
_DAEMON = "PRTE_MCA_prte_launch_agent"
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC")


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """Signal, flags and variables of one MPI's launcher."""

    death_signal: signal.Signals
    """Ends the ranks too, also those that ignore SIGTERM: after SIGKILL Open MPI leaves them,
    after SIGTERM Hydra waits for them for ever."""
    session_variable: str | None = None
    """See `Command`. Open MPI's default is a name made of the launcher's process id: one that was
    killed leaves the name taken, and the launcher that gets its id cannot start."""
    flags: tuple[str, ...] = ()
    """No binding: a rank may use several threads, and other jobs may share the machine."""
    always: Mapping[str, str] = field(default_factory=dict)
    on_one_node: Mapping[str, str] = field(default_factory=dict)
    """Skip the search for networks, which takes each rank a second."""
    on_nodes: Mapping[str, str] = field(default_factory=dict)
    """The launcher detects a dead link within seconds; by default within minutes."""
    by_ssh: Mapping[str, str] = field(default_factory=dict)
    """Options of the ssh that starts processes on other nodes."""
    by_user: Mapping[str, str] = field(default_factory=dict)
    """The user's nodes and numbers count, not those of a batch system."""
    past_batch_system: Mapping[str, str] = field(default_factory=dict)
    """The user's nodes are not those of the batch system: reach them by ssh."""
    former_names: Mapping[str, str] = field(default_factory=dict)
    """Set by the MPI Operator of Kubernetes for Open MPI 4, by the names that Open MPI 5 reads;
    without them all ranks run on the launcher's pod."""
    oversubscribed: Mapping[str, str] = field(default_factory=dict)


_LAUNCHERS: dict[Vendor, _Launcher] = {
    "openmpi": _Launcher(
        death_signal=signal.SIGTERM,
        session_variable="PRTE_MCA_prte_local_tmpdir_base",
        # It refuses more ranks than cores unless told; the flag changes nothing for fewer.
        flags=("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
        # The one-sided component for UCX prints an error for every shared window before another
        # component is used: disable it.
        always={"OMPI_MCA_osc": "^ucx"},
        on_one_node={"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
        on_nodes={
            # Noticed within 8 to 10 seconds: after 2 seconds of silence a probe a second.
            "PRTE_MCA_oob_tcp_keepalive_time": "2",
            "PRTE_MCA_oob_tcp_keepalive_intvl": "1",
            "PRTE_MCA_oob_tcp_keepalive_probes": "8",
        },
        by_ssh={"PRTE_MCA_plm_ssh_args": _SSH},
        past_batch_system={"PRTE_MCA_ras": "^slurm,tm,lsf,gridengine", "PRTE_MCA_plm": "ssh"},
        former_names={
            FORMER_HOST_FILE: HOST_FILE,
            "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "PRTE_MCA_prte_keep_fqdn_hostnames",
        },
        # It counts the machine's cores, not those of the container.
        oversubscribed=OPEN_MPI_YIELDS,
    ),
    "mpich": _Launcher(
        death_signal=signal.SIGKILL,
        flags=("-bind-to", "none"),
        by_ssh={"HYDRA_LAUNCHER_EXTRA_ARGS": _SSH},
        past_batch_system={"HYDRA_LAUNCHER": "ssh", "HYDRA_RMK": "user"},
    ),
    # Pinning would make two jobs on one node share its first cores, one per rank.
    "impi": _Launcher(
        death_signal=signal.SIGKILL,
        always={"I_MPI_PIN": "0"},
        on_one_node={"I_MPI_FABRICS": "shm"},
        oversubscribed=INTEL_MPI_YIELDS,
        by_ssh={"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _SSH},
        by_user={"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0"},
        past_batch_system={
            "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0",
            "I_MPI_HYDRA_BOOTSTRAP": "ssh",
            "I_MPI_HYDRA_RMK": "user",
        },
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
