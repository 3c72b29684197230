"""Stock PyTorch DistributedDataParallel over Gloo, the baseline of Phalanx."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.clock import machine
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.formulas import data_parallel_state
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.strategy import Strategy, UpdateTimes, backward
from phalanx.records.schema import ExpectedCosts
from phalanx.records.spans import ClockReading, now_ns


class Gloo(Strategy):
    """DDP with its defaults.

    Its communication overlaps the backward pass; counted as communication is what the step still
    waits for after its own last gradient is made.
    """

    collective = "gloo"

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        store: dist.Store,
        timeout_s: float,
    ) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.data_rank, self.data_size = rank, size
        self.coordinates = {"dp": rank}
        self._store, self._num_shared = store, 0
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )

    def prepare(self, model: nn.Module, rule: OptimizerConfig) -> None:
        super().prepare(model, rule)
        self._rule = rule
        self._computed_at = 0.0
        self._gradient_bytes = sum(parameter.nbytes for parameter in self._parameters)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._note_time)
        self.optimizer = torch_optimizer(rule, self._parameters)
        self._replica = DistributedDataParallel(model)  # broadcasts rank 0's weights
        self.module = self._replica

    def loss_weight(self, global_targets: int) -> float:
        """Return the weight that undoes DDP's division of the sum by the number of ranks."""
        return self.size / global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        began = time.perf_counter()
        backward(loss_sum, self.loss_weight(global_targets))
        reduced = time.perf_counter()
        self.communicated_bytes += self._gradient_bytes
        self.step_optimizer()
        return UpdateTimes(
            backward_s=self._computed_at - began, communication_s=reduced - self._computed_at
        )

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        """Return the theory of Gloo's ring. Nobody counts what it really sends."""
        size, whole = self._parameters[0].element_size(), self._gradient_bytes
        state_bytes, state_formula = data_parallel_state(self._rule, size, whole)
        moved = 2 * (self.size - 1) / self.size * whole
        return ExpectedCosts(
            sent_bytes=moved,
            received_bytes=moved,
            traffic_formula=f"2(p−1)/p · {size}Ψ",
            state_bytes=state_bytes,
            state_formula=state_formula,
        )

    def synchronize_buffers(self) -> None:
        """Broadcast the buffers of rank 0, as DDP does before every step."""
        for buffer in self.model.buffers():
            dist.broadcast(buffer, 0)

    def barrier(self) -> None:
        dist.barrier()

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(mine, rows)
        return None if rows is None else [row.tolist() for row in rows]

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

    def _note_time(self, _: Tensor) -> None:
        self._computed_at = time.perf_counter()
