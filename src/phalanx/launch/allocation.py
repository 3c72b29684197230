"""Nodes and slots of a batch allocation, over which launchers spread ranks."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from phalanx.errors import UserError

MAX_LOCAL_RANKS = 1024
HOST_FILE = "PRTE_MCA_prte_default_hostfile"
FORMER_HOST_FILE = "OMPI_MCA_orte_default_hostfile"  # of Open MPI 4, and of Kubernetes
_HOST_FILES = (HOST_FILE, FORMER_HOST_FILE, "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")


def slots_per_node(environ: Mapping[str, str]) -> list[int]:
    """Return the slots on each node of the allocation; empty without one."""
    return _of_slurm(environ) or _of_pbs(environ) or _of_lsf(environ) or _of_host_file(environ)


def max_local_ranks(ranks: int, slots: Sequence[int]) -> int:
    """Return the number of `ranks` on the fullest node, when slots are filled node by node."""
    if not slots:
        return ranks
    if ranks > sum(slots):
        return math.ceil(ranks / len(slots))
    return max(_placed(ranks, slots))


def _placed(ranks: int, slots: Sequence[int]) -> list[int]:
    """Return the number of `ranks` on each node."""
    placed: list[int] = []
    for granted in slots:
        placed.append(min(granted, ranks - sum(placed)))
    return placed


def describe_unread_host_file(
    num_nodes: int, ranks: int, library: str, environ: Mapping[str, str]
) -> str | None:
    """Return a warning if Open MPI 5 used fewer nodes than an Open MPI 4 hostfile names, else None.

    Open MPI 5 ignores a hostfile in the variable of Open MPI 4.
    """
    if not re.search(r"Open MPI v([5-9]|\d\d)", library) or HOST_FILE in environ:
        return None
    slots = _of_host_files([environ.get(FORMER_HOST_FILE)])
    if sum(map(bool, _placed(ranks, slots))) <= num_nodes:
        return None
    return (
        f"{FORMER_HOST_FILE} names {len(slots)} hosts, but the {ranks} ranks are on {num_nodes}: "
        f"{library} does not read it; set {HOST_FILE} to the same file and PRTE_MCA_plm_ssh_agent "
        "to what OMPI_MCA_plm_rsh_agent says, or unset it"
    )


def _of_slurm(environ: Mapping[str, str]) -> list[int]:
    """Parse SLURM_TASKS_PER_NODE, such as `4(x2),3`."""
    words = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_TASKS_PER_NODE", ""))
    slots = [int(count) for count, repeat in words for _ in range(int(repeat or 1))]
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and len(slots) != int(nodes):
        return [1] * int(nodes)
    return slots


def _of_pbs(environ: Mapping[str, str]) -> list[int]:
    """Count the lines of PBS_NODEFILE, one per slot."""
    return list(Counter(_lines(environ.get("PBS_NODEFILE"))).values())


def _of_lsf(environ: Mapping[str, str]) -> list[int]:
    """Parse LSB_MCPU_HOSTS, such as `n0 4 n1 4`."""
    return [int(word) for word in environ.get("LSB_MCPU_HOSTS", "").split() if word.isdecimal()]


def _of_host_file(environ: Mapping[str, str]) -> list[int]:
    return _of_host_files(dict.fromkeys(environ.get(name) for name in _HOST_FILES))


def _of_host_files(names: Iterable[str | None]) -> list[int]:
    """Parse hostfiles: `n0 slots=2`, `n0:2` or `n0` per line; a node may appear again."""
    slots: Counter[str] = Counter()
    for name in names:
        for line in _lines(name):
            granted = re.search(r"(?:slots\s*=\s*|:)(\d+)", line)
            slots[re.split(r"[\s:]", line)[0]] += int(granted[1]) if granted else 1
    return list(slots.values())


def _lines(name: str | None) -> list[str]:
    """Return the lines without comments; none if the file cannot be read."""
    try:
        lines = Path(name).read_text().splitlines() if name else []
    except OSError:
        return []
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def check_ranks(ranks: int, environ: Mapping[str, str]) -> None:
    """Raise UserError for more ranks on a node than any node can run."""
    if max_local_ranks(ranks, slots_per_node(environ)) > MAX_LOCAL_RANKS:
        raise UserError(f"--ranks {ranks}: more than {MAX_LOCAL_RANKS} processes on a node")
