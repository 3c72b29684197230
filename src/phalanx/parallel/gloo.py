"""Stock PyTorch DistributedDataParallel over Gloo, the baseline of Phalanx."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.comm.clock import machine
from phalanx.gradients.reducer import ReduceTimes
from phalanx.parallel.ddp import TimedReplica
from phalanx.parallel.formulas import data_parallel_costs
from phalanx.parallel.optimizer import OptimizerSource, torch_optimizer
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import Batch, StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.records.schema import ExpectedCosts
from phalanx.records.spans import ClockReading, now_ns


class Gloo(Strategy):
    """DDP with its defaults."""

    collective = "gloo"

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        store: dist.Store,
        timeout_s: float,
        step_options: StepOptions | None = None,
    ) -> None:
        group = GlooGroup(
            rank=rank, size=size, local_rank=local_rank, store=store, timeout_s=timeout_s
        )
        super().__init__(group, step_options)
        self.coordinates = {"dp": rank}

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        super().prepare(model, rule)
        self.optimizer = torch_optimizer(rule, self._parameters)
        self._replica = TimedReplica(model, self._parameters)
        self.module = self._replica.module
        self._reduced_bytes = sum(parameter.nbytes for parameter in self._parameters)

    def loss_weight(self, batch: Batch) -> float:
        """Return the weight that undoes DDP's division of the sum by the number of ranks."""
        return self.size / batch.global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.module.no_sync()

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        return self._replica.backward(loss_sum, weight, inputs)

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        """Return the theory of Gloo's ring. Nobody counts what it really sends."""
        moved = 2 * (self.size - 1) / self.size * self._reduced_bytes
        formula = f"2(p−1)/p · {self._parameters[0].element_size()}Ψ"
        return data_parallel_costs(self._rule, self._parameters, moved, moved, formula)


class GlooGroup(RunGroup):
    """The ranks of `torch.distributed`'s default group over Gloo, which it makes and ends."""

    def __init__(
        self, *, rank: int, size: int, local_rank: int, store: dist.Store, timeout_s: float
    ) -> None:
        super().__init__(rank=rank, size=size, local_rank=local_rank)
        self._store, self._num_shared = store, 0
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )

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

    def clock(self) -> ClockReading:
        """Return a reading with unknown error between machines."""
        own = torch.tensor([machine(self.rank)])
        machines = [torch.zeros_like(own) for _ in range(self.size)]
        dist.all_gather(machines, own)
        same = all(torch.equal(theirs, own) for theirs in machines)
        return ClockReading(at_ns=now_ns(), offset_ns=0, error_ns=0 if same else None)

    def close(self) -> None:
        dist.destroy_process_group()
