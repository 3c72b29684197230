"""What strategies over MPI have in common: the ranks of a `World`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm.clock import offset_to_first
from phalanx.comm.group import Group
from phalanx.comm.recorder import Recorder
from phalanx.comm.world import World
from phalanx.parallel.strategy import Strategy
from phalanx.records.spans import Reading


class OverMPI(Strategy):
    """Closing it closes the world."""

    first_worker: int = 0
    """Ranks before it are servers, which are given no samples."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank
        self.data_rank, self.data_size = world.rank, world.size
        self.library = world.library

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
    def stands_for_node(self) -> bool:
        return self.rank in self._first_of_nodes()

    def _first_of_nodes(self) -> list[int]:
        """The first rank of each node that is given samples, where there is one."""
        first: dict[int, int] = {}
        for rank in range(self.first_worker, self.size):
            first.setdefault(self._world.group.nodes[rank], rank)
        return sorted(first.values())

    def one_of_each_node(self) -> Group | None:
        first = self._first_of_nodes()
        if len(first) == 1 or self.rank not in first:
            return None
        group = self._world.group.subgroup(first, name="one of each node")
        group.traffic = None  # what it carries is no training
        return group

    def traffic(self) -> tuple[int, int] | None:
        counted = self._world.traffic
        return None if counted is None else (counted.sent_bytes, counted.received_bytes)

    def recorders(self) -> Sequence[Recorder]:
        return (self._world.recorder,)

    def clock(self) -> Reading:
        return offset_to_first(self._world.group)

    def close(self) -> None:
        self._world.close()


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Contiguous; zeros where the loss does not reach the parameter."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return parameter.grad.contiguous()
