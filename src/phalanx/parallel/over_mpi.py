"""Base of strategies over MPI: the ranks of a `World`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm.clock import estimate_offset
from phalanx.comm.flight_recorder import FlightRecorder
from phalanx.comm.group import Group
from phalanx.comm.world import World
from phalanx.parallel.strategy import Strategy
from phalanx.records.spans import ClockReading
from phalanx.torch_backend.tensors import buffer_of


class OverMPI(Strategy):
    """Strategy over a `World`, which it closes."""

    first_worker: int = 0
    """Ranks before it are servers, which are given no samples."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkpoint_group: Group | None = None
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.data_rank, self.data_size = world.rank, world.size
        self.library = world.library

    def _broadcast_untrained(self) -> None:
        """Give every rank the frozen parameters and the buffers of rank 0. Collective."""
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        broadcast_tensors(self._world.group, [*frozen, *self.model.buffers()])

    @torch.no_grad()
    def synchronize_buffers(self) -> None:
        statistics = running_statistics(self.model)
        if statistics:
            weight = 1.0 if self.role == "worker" else 0.0
            flat = torch.cat([tensor.flatten().double() for tensor in statistics]) * weight
            self._world.all_reduce(flat.numpy())
            flat /= self.size - self.first_worker
            parts = flat.split([tensor.numel() for tensor in statistics])
            for tensor, part in zip(statistics, parts, strict=True):
                tensor.copy_(part.view_as(tensor))
        known = {id(tensor) for tensor in statistics}
        others = [buffer for buffer in self.model.buffers() if id(buffer) not in known]
        broadcast_tensors(self._world.group, others)

    def barrier(self) -> None:
        self._world.barrier("the barrier of the epoch")

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        rows = self._world.gather(np.array(values, dtype=np.float64))
        return None if rows is None else rows.tolist()

    def share(self, text: str) -> str:
        return self._world.share(text)

    @property
    def node(self) -> int:
        return self._world.group.nodes[self.rank]

    @property
    def is_node_leader(self) -> bool:
        return self.rank in self._first_rank_of_each_node()

    def _first_rank_of_each_node(self) -> list[int]:
        """Return the first rank of each node that is given samples, where there is one."""
        first: dict[int, int] = {}
        for rank in range(self.first_worker, self.size):
            first.setdefault(self._world.group.nodes[rank], rank)
        return sorted(first.values())

    def node_leaders(self) -> Group | None:
        first = self._first_rank_of_each_node()
        if len(first) == 1 or self.rank not in first:
            return None
        group = self._world.group.subgroup(first, name="one of each node")
        group.traffic = None  # not counted as training
        return group

    def checkpoint_group(self) -> Group | None:
        if self._checkpoint_group is None and self.size > 1:
            group = self._world.group.subgroup(range(self.size), name="checkpoints")
            group.traffic = None  # not counted as training
            self._checkpoint_group = group
        return self._checkpoint_group

    def traffic(self) -> tuple[int, int] | None:
        counted = self._world.traffic
        return None if counted is None else (counted.sent_bytes, counted.received_bytes)

    def recorders(self) -> Sequence[FlightRecorder]:
        return (self._world.recorder,)

    def clock(self) -> ClockReading:
        return estimate_offset(self._world.group)

    def close(self) -> None:
        if self._checkpoint_group is not None:
            self._checkpoint_group.close()
            self._checkpoint_group = None
        self._world.close()


@torch.no_grad()
def broadcast_tensors(group: Group, tensors: Iterable[Tensor]) -> None:
    """Give every rank the values of rank 0, whatever their type. Collective."""
    for tensor in tensors:
        values = tensor.detach().contiguous()
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
