"""ZeRO stage 1: optimizer state sharded among the ranks, by PyTorch's own engines.

DistributedDataParallel sums the gradients, ZeroRedundancyOptimizer keeps the state.

Source: Rajbhandari et al. 2020, "ZeRO", arXiv:1910.02054: stage 1.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from phalanx.comm.world import World
from phalanx.parallel.costs import zero_one_costs
from phalanx.parallel.ddp import TorchReplicas
from phalanx.parallel.optimizer import OptimizerSource, torch_optimizer
from phalanx.parallel.step import StepOptions
from phalanx.parallel.world_group import Backend, WorldGroup
from phalanx.records.events import ExpectedCosts


class ZeroOne(TorchReplicas):
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
        group = WorldGroup(world, torch_backend=backend)
        name = f"torch.distributed on {backend}"
        super().__init__(group, backend=name, step_options=step_options)

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        super().prepare(model, rule)
        own_rule = self._rule

        def make(parameters: Any, **_: Any) -> Any:
            return torch_optimizer(own_rule, parameters)

        make_class: Any = make  # whatever makes an optimizer serves
        self.optimizer = self._zero = ZeroRedundancyOptimizer(
            self._parameters, optimizer_class=make_class, lr=own_rule.learning_rate
        )

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of the parameters that this rank owns."""
        own = self._zero.optim
        mine = {parameter for group in own.param_groups for parameter in group["params"]}
        return {name: own.state[p] for name, p in self.model.named_parameters() if p in mine}

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        sizes = [parameter.numel() for parameter in self._parameters]
        return zero_one_costs(self._trained, sizes, self.rank, self.size)
