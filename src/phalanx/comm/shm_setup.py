"""Set up shared memory among the ranks of a group: all of them, those of each node, or none."""

from __future__ import annotations

from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy


def join_all(
    communicator: SetupCommunicator,
    nodes: tuple[int, ...],
    *,
    policy: WaitPolicy,
    name: str,
    timeout_s: float,
) -> ShmGroup | None:
    """All ranks of `communicator`; None, on all of them, where they do not share memory.

    nodes: the number of each rank's node. Collective.
    """
    if len(nodes) == 1 or len(set(nodes)) > 1:
        return None
    return ShmGroup.join(communicator, policy=policy, name=name, timeout_s=timeout_s)


def join_intra_node(
    communicator: SetupCommunicator,
    nodes: tuple[int, ...],
    members: tuple[int, ...],
    *,
    policy: WaitPolicy,
    name: str,
    timeout_s: float,
) -> ShmGroup | None:
    """Join the ranks on this node, of several nodes. Collective.

    None, on all ranks, where those of some node do not share memory. members: ranks in the world.
    """
    if len(set(nodes)) in (1, len(nodes)):
        return None
    rank = communicator.Get_rank()
    local = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    mine = communicator.split(nodes[rank], [members[other] for other in local])
    shm = ShmGroup.join(mine, policy=policy, name=name, timeout_s=timeout_s, group_ranks=local)
    mine.free()
    joined = communicator.allgather(shm is not None or len(local) == 1)
    return shm if all(joined) else None
