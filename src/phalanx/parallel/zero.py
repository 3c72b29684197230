"""ZeRO stage 1: optimizer state sharded among the ranks, by PyTorch's own engines.

DistributedDataParallel sums the gradients, ZeroRedundancyOptimizer keeps the state.

Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stage 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from phalanx.comm.world import World
from phalanx.gradients.reducer import ReduceTimes
from phalanx.parallel.costs import zero_one_costs
from phalanx.parallel.ddp import TimedReplica
from phalanx.parallel.optimizer import OptimizerSource, torch_optimizer
from phalanx.parallel.step import Batch, StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import Backend, WorldGroup
from phalanx.records.events import ExpectedCosts


class ZeroOne(Strategy):
    """Each parameter has one rank that keeps its state, updates it, and broadcasts it.

    Parameters are assigned unsplit, the largest first, to the rank that has least. Their broadcast
    is timed as optimizer time.
    """

    is_sharded = True
    makes_optimizer = True
    runs_step_hooks = False

    def __init__(
        self, world: World, *, backend: Backend = "mpi", step_options: StepOptions | None = None
    ) -> None:
        super().__init__(WorldGroup(world, torch_backend=backend), step_options)
        self.collective = f"torch.distributed on {backend}"
        self.coordinates = {"dp": world.rank}

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        super().prepare(model, rule)
        own_rule = self._rule
        self._reduced_bytes = sum(parameter.nbytes for parameter in self._parameters)
        self._replica = TimedReplica(model, self._parameters)
        self.module = self._replica.module

        def make(parameters: Any, **_: Any) -> Any:
            return torch_optimizer(own_rule, parameters)

        make_class: Any = make  # whatever makes an optimizer serves
        self.optimizer = self._zero = ZeroRedundancyOptimizer(
            self._parameters, optimizer_class=make_class, lr=own_rule.learning_rate
        )

    def loss_weight(self, batch: Batch) -> float:
        """Return the weight that undoes DDP's division of the sum by the number of ranks."""
        return self.size / batch.global_targets

    def no_sync(self) -> AbstractContextManager[None]:
        return self._replica.module.no_sync()

    def backward_and_reduce(
        self, loss_sum: Tensor, weight: float, inputs: Sequence[nn.Parameter] | None = None
    ) -> ReduceTimes:
        return self._replica.backward(loss_sum, weight, inputs)

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters that this rank owns."""
        own = self._zero.optim
        mine = {parameter for group in own.param_groups for parameter in group["params"]}
        return {name: own.state[p] for name, p in self.model.named_parameters() if p in mine}

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        sizes = [parameter.numel() for parameter in self._parameters]
        itemsize = self._parameters[0].element_size()
        return zero_one_costs(self._rule, sizes, self.rank, self.size, itemsize)
