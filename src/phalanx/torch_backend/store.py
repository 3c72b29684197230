"""The rendezvous store of other backends, such as gloo; opened at its first use.

PyTorch's `TCPStore` listens on all interfaces and resolves host names unless it gets a socket. This
one listens at one address: the loopback on one node, else one that all ranks reach.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, PrefixStore, Store, TCPStore

from phalanx.comm.progress import messages_moving
from phalanx.comm.world import World
from phalanx.jobs.interfaces import (
    LOOPBACK,
    addresses,
    family_of,
    interface_towards,
    is_numeric,
)
from phalanx.torch_backend.torch_patches import hide_cpp_warnings

Gather = Callable[[Any], Sequence[Any]]
"""Returns the objects of all ranks, in rank order. Collective."""

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_REACH_WITHIN_S = 2.0


def open_store(world: World, timeout: timedelta, gather: Gather | None = None) -> Store:
    """Open a store that rank 0 serves. Collective.

    gather: None: uses the world's collectives, so it must not overlap with others.
    Raises: RuntimeError, on every rank, when rank 0 cannot open it or is not reached by all.
    """
    rank, size = world.rank, world.size
    if size == 1:
        return HashStore()
    if gather is None:

        def gather(value: Any) -> Sequence[Any]:
            return [world.share(value, root=root) for root in range(size)]

    listeners, error = _listen(world.on_one_node) if rank == 0 else ([], "")
    offered, error = gather(([listener.getsockname()[:2] for listener in listeners], error))[0]
    answers = gather([rank == 0 or _reaches(address) for address in offered])
    reached = [number for number, _ in enumerate(offered) if all(a[number] for a in answers)]
    if not reached:
        for listener in listeners:
            listener.close()
        where = error or " or ".join(f"{host}:{port}" for host, port in offered)
        raise RuntimeError(f"not all ranks can reach rank 0, which opens a store: {where}")
    host, port = offered[reached[0]]
    descriptor = None
    for number, listener in enumerate(listeners):
        if number == reached[0]:
            descriptor = listener.detach()
        else:
            listener.close()
    # It looks up the names of addresses, for its log alone, and complains where there are none.
    with hide_cpp_warnings(), messages_moving():
        return TCPStore(
            host,
            port,
            size,
            is_master=rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )


@contextmanager
def gloo_interface(store: Store) -> Iterator[None]:
    """Have groups of Gloo that are made meanwhile use the interface that leads to the server of
    `store`, unless GLOO_SOCKET_IFNAME says otherwise.

    By itself Gloo takes the address to which the host's name resolves, else the loopback.
    store: with none of TCP, or one that was opened by a host's name, nothing is done.
    """
    interface = None if GLOO_INTERFACE in os.environ else _interface_to_server(store)
    if interface is not None:
        os.environ[GLOO_INTERFACE] = interface
    try:
        with messages_moving():
            yield
    finally:
        if interface is not None:
            del os.environ[GLOO_INTERFACE]


def _interface_to_server(store: Store) -> str | None:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, LazyStore):
        store = store.opened()
    if not isinstance(store, TCPStore) or not is_numeric(store.host):
        return None
    return interface_towards(store.host)


class LazyStore(Store):
    """A store that opens no port before `open` is called."""

    def __init__(self, make: Callable[[], Store]) -> None:
        """make: opens the store. Collective."""
        super().__init__()
        self._make = make
        self._opened: Store | None = None

    def open(self) -> None:
        """Open the store, collectively, before any rank uses it; later calls do nothing."""
        if self._opened is None:
            self._opened = self._make()

    def opened(self) -> Store:
        """Return the open store. Raises: RuntimeError when it is not open."""
        if self._opened is None:
            raise RuntimeError(
                "the store of backend mpi is opened when all ranks make a group of another "
                "backend: call dist.new_group(backend='gloo') on all ranks first, without "
                "use_local_synchronization"
            )
        return self._opened

    def set_timeout(self, timeout: timedelta) -> None:
        if self._opened is not None:
            self._opened.set_timeout(timeout)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: LazyStore, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.opened(), name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in ("set", "get", "add", "compare_set", "wait", "check", "delete_key", "num_keys"):
    setattr(LazyStore, _name, _forwarded(_name))


def _listen(on_one_node: bool) -> tuple[list[socket.socket], str]:
    """Return sockets that listen at this node's addresses, and the last error."""
    listeners, error = [], ""
    for address in [LOOPBACK] if on_one_node else addresses():
        listener = socket.socket(family_of(address), socket.SOCK_STREAM)
        try:
            listener.bind((address, 0))
            listener.listen(socket.SOMAXCONN)
            listeners.append(listener)
        except OSError as failed:
            listener.close()
            error = f"{address}: {failed.strerror}"
    return listeners, error


def _reaches(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_REACH_WITHIN_S).close()
    except OSError:
        return False
    return True
