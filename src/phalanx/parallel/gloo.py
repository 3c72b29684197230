"""The ranks of a run in which PyTorch's Gloo carries everything: the baseline of Phalanx."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.comm.clock import machine
from phalanx.comm.progress import messages_moving
from phalanx.parallel.run_group import RunGroup
from phalanx.records.spans import ClockReading, now_ns
from phalanx.torch_backend.leave_group import destroy_default_group


class GlooGroup(RunGroup):
    """The ranks of `torch.distributed`'s default group over Gloo, which it makes and ends."""

    def __init__(
        self, *, rank: int, size: int, local_rank: int, store: dist.Store, timeout_s: float
    ) -> None:
        super().__init__(rank=rank, size=size, local_rank=local_rank)
        self._store, self._num_shared = store, 0
        timeout = timedelta(seconds=timeout_s)
        with messages_moving():
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=timeout
            )
        self.num_nodes = max(1, round(self.sum([float(local_rank == 0)])[0]))

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Broadcast the buffers of rank 0, as DDP does before every step."""
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)

    def barrier(self) -> None:
        dist.barrier()

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, rows)
        return None if rows is None else [row.tolist() for row in rows]

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def sum(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def share(self, text: str) -> str:
        key = f"phalanx/shared/{self._num_shared}"
        self._num_shared += 1
        if self.rank == 0:
            self._store.set(key, text)
        shared: bytes = self._store.get(key)
        return shared.decode()

    def broadcast(self, values: NDArray[np.uint8], root: int = 0) -> None:
        dist.broadcast(torch.from_numpy(values), root)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        rows: list[bytes] | None = [b""] * self.size if self.rank == 0 else None
        dist.gather_object(data, rows)
        return rows or []

    def gather_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        gathered = rows.new_empty((sum(counts), *rows.shape[1:]))
        parts = gathered.split(counts)
        parts[self.rank].copy_(rows)
        for rank, part in enumerate(parts):
            dist.broadcast(part, rank)
        return gathered

    def sum_rows(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        sums = rows.clone()
        dist.all_reduce(sums)
        own: Tensor = sums.split(counts)[self.rank]
        return own

    def clock(self) -> ClockReading:
        """Return a reading with unknown error between machines."""
        own = torch.tensor([machine(self.rank)])
        machines = [torch.zeros_like(own) for _ in range(self.size)]
        dist.all_gather(machines, own)
        same = all(torch.equal(theirs, own) for theirs in machines)
        return ClockReading(at_ns=now_ns(), offset_ns=0, error_ns=0 if same else None)

    def close(self) -> None:
        destroy_default_group()
