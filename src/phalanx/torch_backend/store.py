"""The store through which other backends, such as gloo, find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import HashStore, Store, TCPStore

from phalanx.comm.world import World


def open_store(world: World, timeout: timedelta) -> Store:
    """Served by rank 0 on a free port that the others hear of over MPI. Collective.

    Raises: RuntimeError, on every rank, when rank 0 cannot open it.
    """
    if world.size == 1:
        return HashStore()
    host = "127.0.0.1" if world.on_one_node else socket.gethostname()
    server: TCPStore | None = None
    error = ""
    if world.rank == 0:
        try:
            server = TCPStore(
                host, 0, world.size, is_master=True, wait_for_workers=False, timeout=timeout
            )
        except Exception as caught:  # noqa: BLE001  the other ranks wait to hear of it
            error = str(caught)
    host, port, error = world.share((host, server.port if server else 0, error))
    if error:
        raise RuntimeError(f"rank 0 cannot open a store on {host}: {error}")
    return server or TCPStore(
        host, port, world.size, is_master=False, wait_for_workers=False, timeout=timeout
    )
