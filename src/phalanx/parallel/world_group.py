"""The ranks of a `World`, over MPI; where asked for, with `torch.distributed` on the same ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.buffer import Buffer
from phalanx.comm.clock import estimate_offset
from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.group import Group
from phalanx.comm.progress import messages_moving
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.parallel.run_group import RunGroup
from phalanx.records.spans import ClockReading
from phalanx.torch_backend.group_creation import init_on_world
from phalanx.torch_backend.leave_group import destroy_default_group
from phalanx.torch_backend.store import open_store
from phalanx.torch_backend.tensors import buffer_of

Backend = Literal["mpi", "gloo", "nccl"]


class WorldGroup(RunGroup):
    """The ranks of a `World`, which it closes.

    With `torch_backend` they are also those of the default group of `torch.distributed`, which
    carries the training; the world then serves what is no part of it. Closing ends both.
    """

    world: World

    def __init__(
        self, world: World, *, num_workers: int | None = None, torch_backend: Backend | None = None
    ) -> None:
        """num_workers: ranks from it on are servers, which are given no samples; None: no rank.
        torch_backend: `mpi` counts what it sends, others do not.

        Raises: RuntimeError when torch.distributed has a default group already.
        """
        super().__init__(rank=world.rank, size=world.size, local_rank=world.local_rank)
        self.world, self._num_workers = world, num_workers or world.size
        self.library, self.node = world.library, world.group.nodes[world.rank]
        if world.link is None:
            self.num_nodes = len(set(world.group.nodes))
        self._torch_backend = torch_backend
        self._checkpoint_group: Group | None = None
        if torch_backend is not None:
            _init_torch(world, torch_backend)
        self._traffic = _count() if torch_backend == "mpi" else None

    def barrier(self) -> None:
        self.world.barrier("the barrier of the epoch")

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        rows = self.world.gather(np.array(values, dtype=np.float64))
        return None if rows is None else rows.tolist()

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        rows = np.zeros((self.size, len(values)))
        rows[self.rank] = values
        with self.uncounted():
            self.world.all_reduce(rows)
        return rows.tolist()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        group, traffic = self.world.group, self.world.traffic
        group.traffic = None
        try:
            yield
        finally:
            group.traffic = traffic

    def name(self, rank: int) -> str:
        hosts, number = self.world.group.labels.hosts, self.world.original_ranks[rank]
        return f"rank {number} on host {hosts[rank]}" if hosts else f"rank {number}"

    def sum(self, values: Sequence[float]) -> list[float]:
        sums = np.array(values, dtype=np.float64)
        self.world.all_reduce(sums)
        return [float(value) for value in sums]

    def share(self, text: str) -> str:
        return self.world.share(text)

    def depart(self, reason: str) -> None:
        for shm in self.world.step_groups:
            shm.depart(reason)

    def broadcast(self, values: NDArray[np.uint8], root: int = 0) -> None:
        group = self.checkpoint_group()
        if group is not None:
            group.broadcast(Buffer.of(values), root=root)

    def gather_bytes(self, data: bytes) -> Iterable[bytes]:
        group = self.checkpoint_group()
        return [data] if group is None else group.gather_objects(data)

    def gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        gathered = rows.new_empty((sum(counts), *rows.shape[1:]))
        self.world.group.all_gather(list(map(buffer_of, gathered.split(counts))), buffer_of(rows))
        return gathered

    def sum_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        own = rows.new_empty((counts[self.rank], *rows.shape[1:]))
        self.world.group.reduce_scatter(buffer_of(own), list(map(buffer_of, rows.split(counts))))
        return own

    def clock(self) -> ClockReading:
        return estimate_offset(self.world.group)

    def broadcast_model(self, model: nn.Module) -> None:
        broadcast_tensors(self.world.group, [*model.parameters(), *model.buffers()])

    @torch.no_grad()
    def synchronize_buffers(self, model: nn.Module) -> None:
        statistics = running_statistics(model)
        if statistics:
            weight = 1.0 if self.rank < self._num_workers else 0.0
            flat = torch.cat([tensor.flatten().double().cpu() for tensor in statistics]) * weight
            self.world.all_reduce(flat.numpy())
            flat /= self._num_workers
            parts = flat.split([tensor.numel() for tensor in statistics])
            for tensor, part in zip(statistics, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        known = {id(tensor) for tensor in statistics}
        others = [buffer for buffer in model.buffers() if id(buffer) not in known]
        broadcast_tensors(self.world.group, others)

    @property
    def traffic(self) -> TrafficCounter | None:
        return self.world.traffic if self._torch_backend is None else self._traffic

    def recorders(self) -> Sequence[FlightRecorder]:
        if self._torch_backend is None:
            return (self.world.recorder,)
        group: Any = dist.group.WORLD
        session = getattr(group, "session", None)
        return (self.world.recorder, *(() if session is None else (session.world.recorder,)))

    @property
    def is_node_leader(self) -> bool:
        return self.rank in self._first_rank_of_each_node()

    def node_leaders(self) -> Group | None:
        first = self._first_rank_of_each_node()
        if len(first) == 1 or self.rank not in first:
            return None
        return self._uncounted(first, "one of each node")

    def checkpoint_group(self) -> Group | None:
        if self._checkpoint_group is None and self.size > 1:
            self._checkpoint_group = self._uncounted(range(self.size), "checkpoints")
        return self._checkpoint_group

    def close(self) -> None:
        if self._torch_backend is not None:
            destroy_default_group()
        if self._checkpoint_group is not None:
            self._checkpoint_group.close()
            self._checkpoint_group = None
        self.world.close()

    def _first_rank_of_each_node(self) -> list[int]:
        """Return the first rank of each node that is given samples, where there is one."""
        first: dict[int, int] = {}
        for rank in range(self._num_workers):
            first.setdefault(self.world.group.nodes[rank], rank)
        return sorted(first.values())

    def _uncounted(self, ranks: Sequence[int], name: str) -> Group:
        """Return a new group of `ranks` whose messages are not counted as training."""
        group = self.world.group.subgroup(ranks, name=name)
        group.traffic = None
        return group


def _init_torch(world: World, backend: Backend) -> None:
    if backend == "mpi":
        init_on_world(world)
        return
    timeout = timedelta(seconds=world.timeout_s)
    store = open_store(world, timeout)
    with messages_moving():
        dist.init_process_group(
            backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout
        )


def _count() -> TrafficCounter:
    """Count what backend mpi sends from now on, in this group and in groups made of it."""
    group: Any = dist.group.WORLD
    if group.traffic is None:
        group.traffic = TrafficCounter()
    traffic: TrafficCounter = group.traffic
    return traffic


@torch.no_grad()
def broadcast_tensors(group: Group, tensors: Iterable[Tensor]) -> None:
    """Give every rank the values of rank 0, whatever their type. Collective."""
    for tensor in tensors:
        values = tensor.detach().contiguous().cpu()
        group.broadcast(buffer_of(values.reshape(-1).view(torch.uint8)), root=0)
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return batch norm's means and variances of the samples that this rank has seen."""
    return [
        tensor
        for module in model.modules()
        for tensor in (getattr(module, "running_mean", None), getattr(module, "running_var", None))
        if isinstance(tensor, Tensor)
    ]
