"""Stand-in for the module mpi4py.MPI, over sockets: as much of it as the engine uses."""

# ruff: noqa: N802

from __future__ import annotations

import ctypes

from phalanx.comm.sockets.communicator import SocketCommunicator
from phalanx.comm.sockets.inbox import ANY
from phalanx.comm.sockets.mesh import SocketMesh
from phalanx.comm.sockets.requests import ERR_TRUNCATE, SocketError, Status

NAME = "sockets of this node (no MPI)"


class RawMemory:
    """mpi4py's `buffer`."""

    @staticmethod
    def fromaddress(address: int, num_bytes: int) -> memoryview:
        if num_bytes == 0:
            return memoryview(bytearray())
        return memoryview((ctypes.c_ubyte * num_bytes).from_address(address)).cast("B")


class StandIn:
    """The ranks of a mesh in the place of those of MPI."""

    ANY_SOURCE = ANY
    COMM_TYPE_SHARED = TAG_UB = 0
    ERR_TRUNCATE = ERR_TRUNCATE
    Exception = SocketError
    Status = Status
    buffer = RawMemory

    def __init__(self, mesh: SocketMesh) -> None:
        self._mesh = mesh
        self.COMM_WORLD = SocketCommunicator(mesh, range(mesh.size))

    def Is_initialized(self) -> bool:
        return True

    def Is_finalized(self) -> bool:
        return False

    def Get_library_version(self) -> str:
        return NAME

    def close(self) -> None:
        """Collective, as the end of a world is."""
        self._mesh.close()
