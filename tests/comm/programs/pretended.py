"""For the other programs: groups that believe their ranks to be on other nodes."""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from phalanx.comm.connections import Connections
from phalanx.comm.group import Group
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.wait import WaitPolicy
from phalanx.jobs.cores import usable_cores


def group_on(
    nodes: Sequence[int], *, name: str = "network", timeout_s: float = 30, **options: Any
) -> Group:
    """Return a group of all ranks. nodes: the number of each rank's node."""
    size = MPI.COMM_WORLD.Get_size()
    connections = Connections(
        MPI.COMM_WORLD,
        name=name,
        labels=RankLabels(members=tuple(range(size))),
        nodes=tuple(nodes),
        policy=WaitPolicy.for_node(size, usable_cores()),
        timeout_s=timeout_s,
    )
    return Group(connections, **options)
