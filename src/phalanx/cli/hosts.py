"""The options that name nodes, of every command that starts ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

NODES = Group("Nodes", sort_key=6)
Hosts = Annotated[
    str | None,
    Parameter(
        name="--hosts",
        help="Nodes to start ranks on, with how many each: `n0:4,n1:4`; reached by ssh. Default: "
        "$PHALANX_HOSTS, the allocation of Slurm, PBS or LSF, MPI's hostfile, this machine.",
        group=NODES,
    ),
]
HostFile = Annotated[
    Path | None,
    Parameter(
        name="--hostfile",
        help="File of such nodes, one a line: `n0 slots=4` or `n0:4`.",
        group=NODES,
    ),
]
