"""Data parallelism with parameters and optimizer state that exist once a node.

Every rank computes the gradients of its part of each global batch. A rank owns a slice of the
parameters of its node: it adds up the gradients of its slice and updates it at once, where all
ranks of the node see it. With several nodes the owners of a slice exchange their sums in between.
Compared with `mpi` the optimizer's work is divided among the ranks of a node, parameters and state
take so many times less memory, and on one node no sums are written and read again. The trajectory
is the same but for rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.fused import FusedOptimizerStep, LaneOptimizerStep, uneven_nodes
from phalanx.gradients.norms import find_nonfinite
from phalanx.gradients.reducer import SummedLoss, dense_gradient
from phalanx.parallel.costs import shared_memory_costs
from phalanx.parallel.optimizer import FIELDS, OptimizerSource
from phalanx.parallel.parameter_memory import OneCopy
from phalanx.parallel.step import Batch, StateBytes, StepOptions
from phalanx.parallel.strategy import Strategy, describe_over_ranks
from phalanx.parallel.vector import check_one_dtype
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class Shared(Strategy):
    """Strategy whose parameters are views of memory that all ranks of a node see.

    Gradients are each rank's own, and stay those of its part of the batch after the update.
    """

    makes_optimizer = True
    runs_step_hooks = False
    scales_gradients = False
    optimizer: FusedOptimizer

    def __init__(self, world: World, *, step_options: StepOptions | None = None) -> None:
        """Raise UserError when nodes have different numbers of ranks."""
        if (counts := uneven_nodes(world)) is not None:
            raise UserError(
                "--strategy shared needs the same number of ranks on every node, but they have "
                f"{counts}: start as many on each, or use --strategy mpi"
            )
        super().__init__(WorldGroup(world), step_options)
        self._world, self._noted = world, (0.0, 0.0)

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: ValueError when parameters are not all of float32, or all of float64."""
        super().prepare(model, rule)
        self.group.broadcast_model(model)
        check_one_dtype(self._parameters)
        sizes = [parameter.numel() for parameter in self._parameters]
        dtype = self._parameters[0].detach().numpy().dtype
        kind = FusedOptimizerStep if self._world.on_one_node else LaneOptimizerStep
        step = kind.join(self._world, self._rule, sizes, dtype)
        if step is None:
            raise UserError(
                "--strategy shared needs the compiled kernels and shared memory, but these ranks "
                "lack one: use --strategy mpi (`phalanx doctor` shows which)"
            )
        self._step = step
        self.collective = step.name
        self.sums_losses = step.carried is not None
        self._move_parameters(step)
        self.optimizer = FusedOptimizer(self._parameters, step)
        self._closing.callback(self._leave_memory)
        self._one_copy = OneCopy(self._names, self._parameters)

    def _move_parameters(self, step: FusedOptimizerStep) -> None:
        views = [
            torch.from_numpy(array).view(parameter.shape)
            for array, parameter in zip(step.parameters, self._parameters, strict=True)
        ]
        if self._world.local_rank == 0:
            for view, parameter in zip(views, self._parameters, strict=True):
                view.copy_(parameter.detach())
        self._world.barrier("the sharing of parameters")
        for view, parameter in zip(views, self._parameters, strict=True):
            parameter.data = view

    def note_loss(self, weighted_loss: float, weight: float) -> None:
        loss, weights = self._noted
        self._noted = loss + weighted_loss, weights + weight

    def clip_factor(self, scale: float = 1.0) -> float:
        """Return 1: the fused step checks gradients itself, and clips none."""
        assert scale == 1.0, "no rank has the sums"
        return 1.0

    def update(self) -> bool:
        self._one_copy.check()
        if (carried := self._step.carried) is None:
            return self.optimizer.apply()
        carried[:], self._noted = self._noted, (0.0, 0.0)
        is_updated = self.optimizer.apply()
        self.summed = SummedLoss(*carried.tolist())
        return is_updated

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        """Return the time of the fused step but that in which this rank summed and updated its
        slice: checking gradients, barriers, waiting."""
        stepped_s = time.perf_counter() - computed_at
        if not is_updated:
            return stepped_s
        return stepped_s - self.optimizer.own_slice_s if self.size > 1 else 0.0

    def describe_nonfinite(self, batch: Batch, loss: float) -> str:
        """Describe each rank's own gradients, which still exist; their sums never do."""
        own = find_nonfinite([parameter.grad for parameter in self._parameters], loss)
        return describe_over_ranks(self.group, batch.step, own, loss, own, self._names)

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        world, traffic = self._world, self._step.expected_traffic()
        formula, sharers = self._step.traffic_formula(), "p" if world.on_one_node else "k"
        return shared_memory_costs(self._trained, traffic, formula, world.local_size, sharers)

    def state_bytes(self) -> StateBytes:
        """Return the rank's part of the node's shared memory, and its own gradients."""
        whole, sharers = super().state_bytes(), self._world.local_size
        return StateBytes(whole.parameters // sharers, whole.gradients, whole.optimizer // sharers)

    def _leave_memory(self) -> None:
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
        self.optimizer.state.clear()
        self._step.close()


class FusedOptimizer(Optimizer):
    """SGD, Adam or AdamW by `apply()`, which is collective and takes each rank's own gradients.

    `param_groups[0]["lr"]` is read in every step, the other constants are those of the rule. The
    state has torch.optim's names; all ranks of a node see one copy of it, but for the count of
    steps. A parameter without a gradient is updated as if it were zero, as the `mpi` strategy does
    and unlike torch.optim, which passes it over.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], step: FusedOptimizerStep) -> None:
        """parameters: which live in `step.parameters`, in the same order."""
        rule = step.rule
        defaults = {name: getattr(rule, of) for name, of in FIELDS.items()}
        del defaults["trust_coefficient"]
        super().__init__(parameters, defaults)
        self.own_slice_s = 0.0
        """Seconds of the last step in which this rank added up and updated its slice."""
        self._parameters = list(parameters)
        self._step = step
        self._num_steps = np.zeros(len(parameters), np.float32)
        steps = torch.from_numpy(self._num_steps)
        for number, parameter in enumerate(parameters):
            state: dict[str, Any] = {
                name: torch.from_numpy(arrays[number]).view(parameter.shape)
                for name, arrays in step.states.items()
            }
            if rule.name != "sgd":
                state["step"] = steps[number]
            self.state[parameter] = state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises: ValueError when there is a group already: one rule is for all parameters."""
        if self.param_groups:
            raise ValueError("the fused step has one group of parameters")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the shared memory: every rank must load the same."""
        for number, values in state_dict["state"].items():
            state = self.state[self._parameters[number]]
            for name, value in values.items():
                state[name].copy_(value)
        self.param_groups[0]["lr"] = state_dict["param_groups"][0]["lr"]

    def apply(self) -> bool:
        """Update all parameters once, without the hooks of torch.optim, which take longer than a
        small update. Collective.

        Returns: whether it was made, on all ranks alike; if not, a gradient is not finite, and
            nothing has changed.
        Raises: WaitTimeoutError naming the ranks that did not come.
        """
        gradients = [dense_gradient(parameter) for parameter in self._parameters]
        addresses = [gradient.data_ptr() for gradient in gradients]
        used_s = self._step.step_at(
            addresses, self.param_groups[0]["lr"], int(self._num_steps[0]) + 1
        )
        if used_s is None:
            return False
        self.own_slice_s = used_s
        self._num_steps += 1
        return True
