"""The rendezvous store of other backends, such as gloo; opened at its first use.

PyTorch's `TCPStore` listens on all interfaces and resolves host names unless it gets a socket. This
one listens at one address: the loopback on one node, else one that all ranks reach.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, Store, TCPStore

from phalanx.comm.world import World

Gather = Callable[[Any], Sequence[Any]]
"""Returns the objects of all ranks, in rank order. Collective."""

_LOOPBACK = "127.0.0.1"
_REACH_WITHIN_S = 2.0
_SIOCGIFADDR = 0x8915  # the ioctl that asks for the address of an interface


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
    offered, error = gather(([listener.getsockname() for listener in listeners], error))[0]
    answers = gather([rank == 0 or _reaches(address) for address in offered])
    reached = [number for number, _ in enumerate(offered) if all(a[number] for a in answers)]
    if not reached:
        for listener in listeners:
            listener.close()
        where = error or " or ".join(f"{host}:{port}" for host, port in offered)
        raise RuntimeError(f"the ranks do not all reach rank 0, which opens a store: {where}")
    host, port = offered[reached[0]]
    descriptor = None
    for number, listener in enumerate(listeners):
        if number == reached[0]:
            descriptor = listener.detach()
        else:
            listener.close()
    return TCPStore(
        host,
        port,
        size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


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
    for address in [_LOOPBACK] if on_one_node else addresses():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, 0))
            listener.listen(socket.SOMAXCONN)
            listeners.append(listener)
        except OSError as failed:
            listener.close()
            error = f"{address}: {failed.strerror}"
    return listeners, error


def addresses() -> list[str]:
    """Return the IPv4 addresses of this node's interfaces, the loopback's only where it has no
    other. Names are not looked up: between nodes they often mean nothing."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without such an address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    outside = [address for address in found if not address.startswith("127.")]
    return outside or [_LOOPBACK]


def _reaches(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_REACH_WITHIN_S).close()
    except OSError:
        return False
    return True
