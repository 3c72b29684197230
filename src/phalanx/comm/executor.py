"""Execution of the collectives of a group, each by the route that is chosen for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from phalanx.comm.call_monitor import CallMonitor
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import library, over_messages
from phalanx.comm.collectives.single_rank import SingleRank
from phalanx.comm.connections import Connections
from phalanx.comm.device_transport import DeviceOps, DeviceTransport
from phalanx.comm.errors import WaitTimeoutError
from phalanx.comm.select import Route, Topology, choose_route
from phalanx.comm.shm import ShmGroup


class CollectiveExecutor:
    """Executor of the collectives of a group on one rank."""

    def __init__(self, peers: Connections, monitor: CallMonitor) -> None:
        """monitor: counts what sends no messages of ours."""
        self._peers, self._monitor = peers, monitor
        self.direct = SingleRank() if peers.size == 1 else peers.shm
        """Executor of what needs no messages; None where ranks do not share memory."""
        self._device: DeviceTransport | None = None
        self.topology = Topology(
            nodes=peers.nodes,
            shares_memory=peers.shm is not None,
            is_emulated=peers.link_emulator is not None,
        )

    def route(self, collective: Collective) -> Route:
        """Return the route of `collective`. Raises: ValueError when what it requests is missing."""
        native = collective.algorithm == "library" and library.is_native(collective.dtype)
        return choose_route(self.topology, collective, is_native=native)

    def run(self, collective: Collective, route: Route, timeout_s: float | None) -> None:
        """Execute `collective`; its waits end after `timeout_s`."""
        peers = self._peers
        if route in ("single", "shared"):
            assert self.direct is not None, "the ranks share memory"
            self._run_in_memory(self.direct, timeout_s, collective)
        elif route == "library":
            peers.transport.begin(timeout_s)
            library.run(peers.transport, collective)
            self._monitor.count_of_library(collective)
        else:
            peers.transport.begin(timeout_s)
            shm = peers.intra_node
            over_messages.run(
                self._device or peers.transport,
                collective,
                route,
                nodes=self.topology.nodes,
                run_on_node=partial(self._run_on_node, shm, timeout_s) if shm else None,
            )
            if self._device is not None:
                self._device.finish()

    @contextmanager
    def on_device(self, memory: DeviceOps) -> Iterator[None]:
        """Meanwhile the buffers of collectives lie in memory of a device."""
        on_host = self.topology
        self._device = DeviceTransport(self._peers.transport, memory)
        self.topology = replace(on_host, on_device=True)
        try:
            yield
        finally:
            self._device, self.topology = None, on_host

    def _run_on_node(
        self, ranks: ShmGroup, timeout_s: float | None, collective: Collective
    ) -> None:
        """Execute a part of a collective of several nodes; those on other nodes may ask meanwhile,
        and a timeout names all ranks that are missing."""
        detector = self._peers.detector
        detector.is_in_memory = True
        try:
            self._run_in_memory(ranks, timeout_s, collective)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(detector.missing_ranks()) from error
        finally:
            detector.is_in_memory = False

    def _run_in_memory(
        self, ranks: ShmGroup | SingleRank, timeout_s: float | None, collective: Collective
    ) -> None:
        began = time.perf_counter()
        ranks.run(collective, timeout_s)
        elapsed_s = time.perf_counter() - began
        self._monitor.count_in_memory(collective, ranks.rank, ranks.size, elapsed_s)
