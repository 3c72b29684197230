"""ZeRO stage 1: optimizer state sharded among the ranks, by PyTorch's own engines.

DistributedDataParallel sums the gradients, ZeroRedundancyOptimizer keeps the state.

Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stage 1.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.parallel.costs import assign_owners, zero_one_traffic
from phalanx.parallel.engine import Backend, OnTorch
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.strategy import UpdateTimes, backward
from phalanx.records.schema import ExpectedCosts


class ZeroOne(OnTorch):
    """Each parameter has one rank that keeps its state, updates it, and broadcasts it.

    Parameters are assigned unsplit, the largest first, to the rank that has least.
    """

    is_sharded = True

    def __init__(self, world: World, *, backend: Backend = "mpi") -> None:
        super().__init__(world, backend=backend)
        self.coordinates = {"dp": world.rank}

    def prepare(self, model: nn.Module, rule: OptimizerConfig) -> None:
        super().prepare(model, rule)
        self._rule, self._computed_at = rule, 0.0
        self._gradient_bytes = sum(parameter.nbytes for parameter in self._parameters)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._note_time)
        self._replica = DistributedDataParallel(model)  # broadcasts rank 0's weights
        self.module = self._replica

        def make(parameters: Any, **_: Any) -> Any:
            return torch_optimizer(rule, parameters)

        make_class: Any = make  # whatever makes an optimizer serves
        self.optimizer = self._zero = ZeroRedundancyOptimizer(
            self._parameters, optimizer_class=make_class, lr=rule.learning_rate
        )

    def loss_weight(self, global_targets: int) -> float:
        """Return the weight that undoes DDP's division of the sum by the number of ranks."""
        return self.size / global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()

    def update(self, loss_sum: Tensor, global_targets: int) -> UpdateTimes:
        """Update; the parameter broadcast is timed as optimizer time."""
        began = time.perf_counter()
        backward(loss_sum, self.loss_weight(global_targets))
        reduced = time.perf_counter()
        self.communicated_bytes += self._gradient_bytes
        self.step_optimizer()
        return UpdateTimes(
            backward_s=self._computed_at - began, communication_s=reduced - self._computed_at
        )

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters that this rank owns."""
        own = self._zero.optim
        mine = {parameter for group in own.param_groups for parameter in group["params"]}
        return {name: own.state[p] for name, p in self.model.named_parameters() if p in mine}

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        sizes = [parameter.numel() for parameter in self._parameters]
        itemsize = self._parameters[0].element_size()
        moved = zero_one_traffic(sizes, self.rank, self.size, itemsize)
        owners = assign_owners(sizes, self.size)
        own = sum(n for n, owner in zip(sizes, owners, strict=True) if owner == self.rank)
        state = len(STATE_NAMES[self._rule.kind]) * itemsize
        return ExpectedCosts(
            sent_bytes=moved.sent_bytes,
            received_bytes=moved.received_bytes,
            traffic_formula=f"2(p−1)/p · {itemsize}Ψ + (p−1) · {itemsize}Ψ_own",
            state_bytes=2 * itemsize * sum(sizes) + state * own,
            state_formula=f"{2 * itemsize}Ψ + {state}Ψ_own, Ψ_own about Ψ/p",
        )

    def _note_time(self, _: Tensor) -> None:
        self._computed_at = time.perf_counter()
