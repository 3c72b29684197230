"""Base of strategies on PyTorch's own engines: `torch.distributed` over MPI's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist

from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.parallel.over_mpi import OverMPI
from phalanx.torch_backend.store import open_store

Backend = Literal["mpi", "gloo"]


class OnTorch(OverMPI):
    """Strategy whose `World` ranks are also those of `torch.distributed`'s default group.

    The world serves what is no part of training: meeting, gathering, sharing. Closing this ends
    the default group and then the world.
    """

    def __init__(self, world: World, *, backend: Backend) -> None:
        """backend: what carries the messages; `mpi` counts what it sends, `gloo` does not.

        Raises: RuntimeError when torch.distributed has a default group already.
        """
        super().__init__(world)
        self._traffic: TrafficCounter | None = None
        timeout = timedelta(seconds=world.timeout_s)
        if backend == "mpi":
            dist.init_process_group("mpi", timeout=timeout)
            self._traffic = _count()
        else:
            store = open_store(world, timeout)
            dist.init_process_group(
                "gloo", store=store, rank=world.rank, world_size=world.size, timeout=timeout
            )
        self.collective = f"torch.distributed on {backend}"

    def traffic(self) -> tuple[int, int] | None:
        if self._traffic is None:
            return None
        return self._traffic.sent_bytes, self._traffic.received_bytes

    def recorders(self) -> Sequence[FlightRecorder]:
        group: Any = dist.group.WORLD
        session = getattr(group, "session", None)
        return (*super().recorders(), *(() if session is None else (session.world.recorder,)))

    def close(self) -> None:
        dist.destroy_process_group()
        super().close()


def _count() -> TrafficCounter:
    """Count what backend mpi sends from now on, in this group and in groups made of it."""
    group: Any = dist.group.WORLD
    if group.traffic is None:
        group.traffic = TrafficCounter()
    traffic: TrafficCounter = group.traffic
    return traffic
