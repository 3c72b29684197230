"""The nodes on which ranks are started: named by the user, or granted by a batch system."""

from __future__ import annotations

import itertools
import math
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import UserError

MAX_LOCAL_RANKS = 1024
HOSTS = "PHALANX_HOSTS"
"""The user's own nodes, `n0:4,n1:4`; `--hosts` and `--hostfile` set it for all that they start."""
NAMED_BY = "PHALANX_HOSTS_NAMED_BY"
"""The option that has set `HOSTS`; without it the user has."""
HOST_FILE = "PRTE_MCA_prte_default_hostfile"
FORMER_HOST_FILE = "OMPI_MCA_orte_default_hostfile"  # variable of Open MPI 4 and of Kubernetes
_HOST_FILES = (HOST_FILE, FORMER_HOST_FILE, "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")


@dataclass(frozen=True)
class Node:
    """A node, and how many ranks it is meant for."""

    name: str
    slots: int


@dataclass(frozen=True)
class Allocation:
    """Nodes in the order in which ranks fill them; none: this machine alone."""

    nodes: tuple[Node, ...]
    source: str
    """The one who named them: "--hosts", "Slurm job 8"."""
    is_named: bool = False
    """The user has named them to us: `--hosts`."""
    needs_flags: bool = False
    """The launcher has to be told; Slurm and MPI's own hostfile tell it by themselves."""
    has_remote_start: bool = False
    """The batch system starts processes on its nodes (srun, blaunch), else ssh does."""

    @property
    def slots(self) -> list[int]:
        return [node.slots for node in self.nodes]

    @property
    def is_one_machine(self) -> bool:
        return len(self.nodes) < 2

    @property
    def has_others(self) -> bool:
        """Return whether any of the nodes is another machine than this one."""
        return any(not is_this_machine(node.name) for node in self.nodes)

    @property
    def reaches_user_nodes(self) -> bool:
        return self.is_named and self.has_others

    def spread(self, ranks: int, count: int) -> Allocation | None:
        """Return the first `count` nodes with equal shares of `ranks`; None if they do not fit."""
        share = ranks // count
        used = self.nodes[:count]
        if len(used) < count or ranks % count or share > min(node.slots for node in used):
            return None
        return replace(self, nodes=tuple(Node(node.name, share) for node in used))

    def hosts(self) -> str:
        """Return the nodes as `--hosts` takes them: "n0:4,n1:4"."""
        return ",".join(f"{node.name}:{node.slots}" for node in self.nodes)

    def describe(self, ranks: int) -> str:
        """Return where `ranks` ranks run and who says so: "4 ranks on n0, n1 (Slurm job 8)"."""
        count = f"{ranks} rank{'s' * (ranks != 1)}"
        if not self.nodes:
            return f"{count} on this machine"
        used = [name for name, _ in self.used(ranks)]
        shown = ", ".join(used[:8]) + (f" and {len(used) - 8} more" if len(used) > 8 else "")
        return f"{count} on {shown} ({self.source})"

    def used(self, ranks: int) -> list[tuple[str, int]]:
        """Return the nodes on which `ranks` ranks run, each with how many; they fill slots node by
        node, and are spread evenly where there are more."""
        each, more = divmod(ranks, len(self.nodes) or 1)
        placed = [each + (number < more) for number in range(len(self.nodes))]
        if ranks <= sum(self.slots):
            ends = [min(ranks, end) for end in itertools.accumulate(self.slots, initial=0)]
            placed = [end - begin for begin, end in itertools.pairwise(ends)]
        return [(n.name, here) for n, here in zip(self.nodes, placed, strict=True) if here]

    def max_local_ranks(self, ranks: int) -> int:
        """Return the number of `ranks` on the fullest node."""
        return max((here for _, here in self.used(ranks)), default=ranks)


THIS_MACHINE = Allocation((), "this machine")


def allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the nodes to start ranks on, from what the user or a batch system says.

    Raises: UserError for hosts that cannot be understood.
    """
    if environ.get(HOSTS):
        source = environ.get(NAMED_BY) or HOSTS
        nodes = parse_hosts(environ[HOSTS], source)
        if all(is_this_machine(node.name) for node in nodes):
            nodes = (Node("localhost", sum(node.slots for node in nodes)),)
        return Allocation(nodes, source, is_named=True, needs_flags=True)
    return granted(environ)


def granted(environ: Mapping[str, str]) -> Allocation:
    """Return the nodes that a batch system or MPI's hostfile names, whatever the user says."""
    slurm, pbs, lsf = (
        environ.get(f"{name}ID", "?") for name in ("SLURM_JOB_", "PBS_JOB", "LSB_JOB")
    )
    found = (
        Allocation(_of_slurm(environ), f"Slurm job {slurm}", has_remote_start=True),
        # A line of PBS_NODEFILE is a slot.
        Allocation(
            _counted(_lines(environ.get("PBS_NODEFILE"))), f"PBS job {pbs}", needs_flags=True
        ),
        Allocation(_of_lsf(environ), f"LSF job {lsf}", needs_flags=True, has_remote_start=True),
        Allocation(
            _of_host_files(dict.fromkeys(map(environ.get, _HOST_FILES))), "the hostfile of MPI"
        ),
    )
    return next((each for each in found if each.nodes), THIS_MACHINE)


def is_this_machine(name: str) -> bool:
    """Return whether a host of `--hosts` is the machine that this process runs on.

    No name is looked up: a resolver may take seconds to find nothing.
    """
    host = socket.gethostname()
    if name in ("localhost", host, host.partition(".")[0]) or name.startswith(f"{host}."):
        return True
    address = name.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        with socket.socket(family) as endpoint:
            endpoint.bind((address, 0))  # only an address of this machine can be
    except OSError:
        return False
    return True


_USER_MEND = "put the user's name into ~/.ssh/config (Host n0, and below it User bob)"


def parse_hosts(text: str, source: str = "--hosts") -> tuple[Node, ...]:
    """Parse `n0:4,n1:4`; a node without a number is meant for one rank, as in all MPIs.

    source: who names them.
    Raises: UserError, which names the word.
    """
    mend = f"write {HOSTS + '=' if source == HOSTS else '--hosts '}n0:4,n1:4 (name:ranks)"
    slots: Counter[str] = Counter()
    for word in filter(None, re.split(r"[,\s]+", text)):
        found = re.fullmatch(r"([\w.\-]+|\[[0-9a-fA-F:]+\])(?::(\d+))?", word)
        if found is None or found[2] == "0":
            raise UserError(
                f"{source}: {word!r} is not a host; {_USER_MEND if '@' in word else mend}"
            )
        slots[found[1]] += int(found[2] or 1)
    if not slots:
        raise UserError(f"{source} names no host; {mend}")
    return _counted(slots)


def use_hosts(hosts: str | None, hostfile: Path | None, environ: MutableMapping[str, str]) -> None:
    """Make the user's nodes those of this process and of all that it starts.

    Raises: UserError for both at once, or for hosts that cannot be understood.
    """
    if hosts is not None and hostfile is not None:
        raise UserError("--hosts and --hostfile both name the nodes: leave one out")
    if hosts is not None:
        parse_hosts(hosts)
        environ.update({HOSTS: hosts, NAMED_BY: "--hosts"})
    if hostfile is not None:
        found = Allocation(read_host_file(hostfile), f"--hostfile {hostfile}")
        environ.update({HOSTS: found.hosts(), NAMED_BY: found.source})


def describe_unread_host_file(
    num_nodes: int, ranks: int, library: str, environ: Mapping[str, str]
) -> str | None:
    """Return a warning if Open MPI 5 used fewer nodes than an Open MPI 4 hostfile names, else None.

    Open MPI 5 ignores a hostfile in the variable of Open MPI 4.
    """
    if not re.search(r"Open MPI v([5-9]|\d\d)", library) or HOST_FILE in environ:
        return None
    named = Allocation(_of_host_files([environ.get(FORMER_HOST_FILE)]), FORMER_HOST_FILE)
    if len(named.used(ranks)) <= num_nodes:
        return None
    return (
        f"{FORMER_HOST_FILE} names {len(named.nodes)} hosts, but the {ranks} ranks are on "
        f"{num_nodes}: {library} does not read it; set {HOST_FILE} to the same file and "
        "PRTE_MCA_plm_ssh_agent to the value of OMPI_MCA_plm_rsh_agent, or unset it"
    )


def describe_unused_nodes(num_nodes: int, ranks: int, environ: Mapping[str, str]) -> str | None:
    """Return a warning if all ranks are on one node though several are named for them, else None.

    num_nodes: on which the ranks are. Slurm tells its launchers itself, and who asks it for fewer
    nodes means it.
    """
    nodes = allocation(environ)
    wanted = len(nodes.used(ranks))
    if num_nodes > 1 or wanted < 2 or not nodes.needs_flags:
        return None
    text = f"{nodes.source} names {wanted} nodes for {ranks} ranks, but all ranks are on one: the "
    if nodes.is_named:
        return text + f"launcher uses other nodes; name these to it, or unset {HOSTS}"
    variable = "PBS_NODEFILE" if environ.get("PBS_NODEFILE") else "LSB_MCPU_HOSTS"
    hosts = ",".join(f"{node.name}:{node.slots}" for node in nodes.nodes[:8])
    return text + (
        f"launcher does not read {variable}; start with `phalanx launch`, or mpirun -H {hosts}; or "
        f"unset {variable}"
    )


def describe_idle_nodes(environ: Mapping[str, str]) -> str | None:
    """Return a line if a step of `srun` uses fewer nodes of its job than it has tasks for, else
    None. That may be meant: another step may run beside it."""
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES")
    tasks, used, granted = (
        int(text) if (text := environ.get(name, "")).isdecimal() else 0 for name in names
    )
    if not 0 < used < min(tasks, granted):
        return None
    return (
        f"the {tasks} ranks are on {used} of the {granted} nodes of Slurm job "
        f"{environ.get('SLURM_JOB_ID', '?')}; to use all: srun --nodes={granted}"
    )


def _of_slurm(environ: Mapping[str, str]) -> tuple[Node, ...]:
    """Parse SLURM_JOB_NODELIST (`n[0-2],m7`) and SLURM_TASKS_PER_NODE (`4(x2),3`)."""
    slots = per_node(environ.get("SLURM_TASKS_PER_NODE", ""))
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and len(slots) != int(nodes):
        slots = [1] * int(nodes)
    names = expand_names(environ.get("SLURM_JOB_NODELIST", ""))
    if len(names) != len(slots):
        names = [f"node {number}" for number in range(len(slots))]
    return tuple(map(Node, names, slots))


def per_node(text: str) -> list[int]:
    """Parse the numbers that Slurm writes in short: `4(x2),3` for 4, 4 and 3."""
    words = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, repeat in words for _ in range(int(repeat or 1))]


def expand_names(text: str) -> list[str]:
    """Return the names that Slurm writes in short: `n[0-2,7],m1` for n0, n1, n2, n7 and m1; none of
    names in several dimensions."""
    names: list[str] = []
    if re.search(r"\][^,]*\[", text):
        return names
    for prefix, inside, suffix in re.findall(
        r"([^,\[\]]*)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)", text
    ):
        if not inside:
            names += [prefix + suffix] if prefix + suffix else []
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
    return names


def _of_lsf(environ: Mapping[str, str]) -> tuple[Node, ...]:
    """Parse LSB_MCPU_HOSTS, such as `n0 4 n1 4`."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    pairs = zip(words[::2], words[1::2], strict=False)
    return tuple(Node(name, int(slots)) for name, slots in pairs if slots.isdecimal())


def _of_host_files(names: Iterable[str | None]) -> tuple[Node, ...]:
    """Parse hostfiles: `n0 slots=2`, `n0:2` or `n0` per line; a node may appear again."""
    slots: Counter[str] = Counter()
    for name in names:
        for line in _lines(name):
            granted = re.search(r"(?:slots\s*=\s*|:)(\d+)", line)
            slots[re.split(r"[\s:]", line)[0]] += int(granted[1]) if granted else 1
    return _counted(slots)


def _counted(slots: Iterable[str] | Mapping[str, int]) -> tuple[Node, ...]:
    """Return nodes by their slots, or by names of which each stands for a slot."""
    return tuple(Node(*item) for item in Counter(slots).items())


_HOST_LINE = re.compile(
    r"(?P<name>[\w.\-]+)(?::(?P<slots>\d+))?"
    r"(?P<words>(?:\s+(?:slots|max[-_]slots|cpu|count|binding|ifname)\s*=\s*\S+)*)"
)


def read_host_file(path: Path) -> tuple[Node, ...]:
    """Read a hostfile of any MPI: `n0 slots=2 max-slots=4`, `n0:2`, `n0`; a node may appear again.

    Raises: UserError, which names the line that is none.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # it may have no end
            raise UserError(f"--hostfile {path} is not a regular file: write the hosts into one")
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UserError(f"--hostfile {path}: {error.strerror}") from None
    slots: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _HOST_LINE.fullmatch(text)
        if found is None:
            raise UserError(
                f"--hostfile {path}, line {number}: {text!r} is not a host: write `n0 slots=4` or "
                f"`n0:4`{'; ' + _USER_MEND if '@' in text else ''}"
            )
        said = re.search(r"\b(?:slots|cpu|count)\s*=\s*(\S+)", found["words"])
        count = said[1] if said else found["slots"] or "1"
        if not count.isdecimal() or int(count) < 1:
            raise UserError(f"--hostfile {path}, line {number}: {text!r}: slots are 1 or more")
        slots[found["name"]] += int(count)
    if not slots:
        raise UserError(f"--hostfile {path} names no host: one per line, `n0 slots=4` or `n0:4`")
    return _counted(slots)


def _lines(name: str | None) -> list[str]:
    """Return the lines without comments; none if the file cannot be read."""
    try:
        lines = Path(name).read_text().splitlines() if name else []
    except OSError:
        return []
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def check_ranks(ranks: int, environ: Mapping[str, str]) -> None:
    """Raises: UserError for more ranks than the user's nodes have slots, than Slurm has granted
    tasks and CPUs on several nodes, or than any node can run."""
    nodes = allocation(environ)
    slots = sum(nodes.slots)
    if nodes.is_named and ranks > slots:
        raise UserError(
            f"--ranks {ranks}: {nodes.source} has {slots} slot{'s' * (slots != 1)}: "
            f"{nodes.hosts().replace(',', ', ')}; name more slots or start fewer ranks"
        )
    cpus = sum(per_node(environ.get("SLURM_JOB_CPUS_PER_NODE", "")))  # 0 without Slurm
    if cpus and not nodes.is_named and not nodes.is_one_machine and ranks > max(slots, cpus):
        raise UserError(
            f"--ranks {ranks}: {nodes.source} has {slots} task{'s' * (slots != 1)} and {cpus} CPUs "
            f"on {len(nodes.nodes)} nodes: start fewer ranks, or request more: salloc "
            f"--nodes={len(nodes.nodes)} --ntasks-per-node={math.ceil(ranks / len(nodes.nodes))}"
        )
    if nodes.max_local_ranks(ranks) > MAX_LOCAL_RANKS:
        raise UserError(f"--ranks {ranks}: more than {MAX_LOCAL_RANKS} processes on a node")
