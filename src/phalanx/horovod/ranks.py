"""The ranks of a program in Horovod's style, from `hvd.init` to `hvd.shutdown`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.jobs.detect import detect
from phalanx.torch_backend.group_creation import open_session
from phalanx.torch_backend.process_group import ProcessGroupMPI
from phalanx.torch_backend.rendezvous import Rendezvous, fresh_store, is_without_mpi

TIMEOUT_S = 1800.0
"""Longest wait for a peer, as in PyTorch: rank 0 may evaluate alone for a while."""


class Ranks(NamedTuple):
    """All ranks, between `init` and `shutdown`."""

    world: World
    """Its own group sums gradients."""
    group: ProcessGroupMPI
    """Process group of the collectives that the program calls."""


class _Joined:
    """Ranks that `init` has joined: Horovod's interface has no object to hold them."""

    ranks: Ranks | None = None


def init(comm: Any = None, process_sets: object = None) -> None:
    """Join the ranks that a launcher started (`phalanx launch`, mpiexec, srun, torchrun), or be the
    only one. Collective; a second call does nothing.

    Args:
        comm: mpi4py communicator of the ranks. None: all ranks.
        process_sets: Refused: all ranks take part.

    Raises:
        UserError: For lists of ranks and process sets.
    """
    if _Joined.ranks is not None:
        return
    if process_sets is not None or isinstance(comm, (list, tuple)):
        raise UserError(
            "hvd.init: process sets and lists of ranks are not supported; pass an mpi4py "
            "communicator as comm=: MPI.COMM_WORLD.Split(color, rank)"
        )
    session = open_session(timedelta(seconds=TIMEOUT_S), _meet() if comm is None else None, comm)
    world = session.world
    # A second group: programs may call collectives while gradients are summed on the first.
    engine = world.group.subgroup(range(world.size), name="horovod")
    _Joined.ranks = Ranks(world, ProcessGroupMPI(engine, session, None, "horovod"))


def _meet() -> Rendezvous | None:
    """Return the place where ranks without MPI meet, None where MPI knows them."""
    launched = detect(os.environ)
    if launched is None:
        return Rendezvous(store=dist.HashStore(), rank=0, size=1)
    if not is_without_mpi(os.environ):
        return None
    rank, size = launched.rank, launched.world_size
    store, _, _ = next(dist.rendezvous("env://", rank, size))
    return Rendezvous(store=fresh_store(store, rank, os.environ), rank=rank, size=size)


def joined() -> Ranks:
    """Return the ranks. Raises: UserError before `init`."""
    if _Joined.ranks is None:
        raise UserError("phalanx.horovod is not initialized: call hvd.init() first")
    return _Joined.ranks


def shutdown() -> None:
    """Leave the ranks, once all calls are complete. Collective; also done at exit."""
    if _Joined.ranks is not None:
        group, _Joined.ranks = _Joined.ranks.group, None
        group.shutdown()


def is_initialized() -> bool:
    """Return whether the program is between `init` and `shutdown`."""
    return _Joined.ranks is not None


def rank() -> int:
    """Return the number of this rank, from 0."""
    return joined().world.rank


def size() -> int:
    """Return the number of ranks."""
    return joined().world.size


def local_rank() -> int:
    """Return the number of this rank on its node, from 0."""
    return joined().world.local_rank


def local_size() -> int:
    """Return the number of ranks on this node."""
    return joined().world.local_size


def cross_rank() -> int:
    """Return the number of this rank among those of its local rank, one a node."""
    return _cross()[0]


def cross_size() -> int:
    """Return the number of nodes that have this local rank."""
    return _cross()[1]


def is_homogeneous() -> bool:
    """Return whether all nodes have the same number of ranks."""
    nodes = joined().world.group.nodes
    return len({nodes.count(node) for node in nodes}) == 1


def _cross() -> tuple[int, int]:
    world = joined().world
    peers = peers_of(world.group.nodes, world.rank)
    return peers.index(world.rank), len(peers)


def peers_of(nodes: Sequence[int], rank: int) -> list[int]:
    """Return the ranks with the local rank of `rank`, one a node, in order.

    nodes: number of each rank's node.
    """
    local = [nodes[:other].count(node) for other, node in enumerate(nodes)]
    return [other for other in range(len(nodes)) if local[other] == local[rank]]
