"""The options that name nodes, of every command that starts ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console

from phalanx.errors import UserError
from phalanx.jobs.allocation import allocation, use_hosts

if TYPE_CHECKING:  # `phalanx launch` starts no training
    from phalanx.train.config import TrainConfig

NODES = Group("Nodes", sort_key=6)
Hosts = Annotated[
    str | None,
    Parameter(
        name="--hosts",
        help="Nodes and ranks on each: `n0:4,n1:4`; reached by ssh. Default: $PHALANX_HOSTS, the "
        "allocation of Slurm, PBS or LSF, MPI's hostfile, this machine.",
        group=NODES,
    ),
]
HostFile = Annotated[
    Path | None,
    Parameter(
        name="--hostfile",
        help="File of such nodes, one per line: `n0 slots=4` or `n0:4`.",
        group=NODES,
    ),
]


def refuse_one_process(config: TrainConfig, hosts: str | None, hostfile: Path | None) -> None:
    """Raises: UserError for nodes that a run of one process would not use."""
    if config.strategy == "sequential" and (hosts is not None or hostfile is not None):
        option = "--hostfile" if hosts is None else "--hosts"
        raise UserError(
            f"{option} is for several ranks, but --strategy sequential is one process: add "
            "--strategy mpi"
        )


def take_hosts(
    hosts: str | None, hostfile: Path | None, console: Console, ranks: int | None = None
) -> None:
    """Make the user's nodes those of all that is started, and print which they are and why.

    ranks: of the one job that is started; None: jobs of several numbers of ranks.
    Raises: UserError as `use_hosts`.
    """
    use_hosts(hosts, hostfile, os.environ)
    nodes = allocation(os.environ)
    if nodes.nodes:
        text = nodes.describe(sum(nodes.slots) if ranks is None else ranks)
        console.print(f"up to {text}" if ranks is None else text, markup=False)
