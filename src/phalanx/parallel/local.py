"""Local SGD: every rank trains alone, and periodically all average their parameters.

Communication happens every so many steps instead of in every one, so it costs so many times less;
between two meetings the ranks drift apart, which is what it costs in accuracy.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn
from torch.optim import SGD

from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.norms import describe_rank_nonfinite, find_nonfinite
from phalanx.gradients.optimizer_update import STATE_NAMES
from phalanx.gradients.reducer import GradReducer, RankLocalState
from phalanx.parallel.costs import local_costs
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.options import LocalOptions
from phalanx.parallel.step import Batch, StateBytes, StepOptions, storage_bytes
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.vector import flatten_parameters
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class Local(Strategy):
    """Strategy of local steps, each by the gradient of the mean over the rank's own samples.

    Every `local_steps` steps, and at the end of an epoch, the ranks add up how far each has come
    from the last shared parameters, weighted by the targets that it has seen since.

    average:  the shared parameters move by that sum, to the mean of the ranks' parameters. With one
              step of SGD without momentum these are the numbers of one process, however uneven the
              shares.
    nesterov: the sum is the negative of an outer gradient, by which SGD with Nesterov's momentum
              makes a step of the shared parameters.

    Gradients are clipped and looked through by each rank for itself: they are never summed. A step
    that is skipped is skipped on the rank whose gradients were not finite.

    The optimizer's own state stays where it is. A checkpoint has that of every rank and the outer
    momentum, for as many ranks with the same outer optimizer; others go on from rank 0's.
    Source: Stich 2019, "Local SGD converges fast and communicates little", arXiv:1805.09767;
            Douillard et al. 2023, "DiLoCo", arXiv:2311.08105, for the outer step.
    """

    sums_gradients = False

    def __init__(
        self,
        world: World,
        options: LocalOptions,
        *,
        step_options: StepOptions | None = None,
    ) -> None:
        super().__init__(WorldGroup(world), step_options)
        self._world = world
        self._period = options.local_steps
        is_average = options.outer_optimizer == "average"
        self._outer_lr = 1.0 if is_average else options.outer_lr
        self._outer_momentum = 0.0 if is_average else options.outer_momentum
        self._steps_since, self._own_weight, self._all_weight = 0, 0.0, 0.0
        self._reducer: GradReducer | None = None

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: ValueError when parameters are not all of float32, or all of float64."""
        super().prepare(model, rule)
        self.group.broadcast_model(model)
        self._flat_parameters = flatten_parameters(self._parameters)
        self._shared = self._flat_parameters.clone()
        if self.size > 1:
            self._reducer = AllReduce(overlap="off").make([self._shared], self._world)
            self._closing.callback(self._reducer.close)
            self.collective = self._reducer.name
        self._outer = SGD(
            [self._shared],
            lr=self._outer_lr,
            momentum=self._outer_momentum,
            nesterov=self._outer_momentum > 0,
            fused=True,
        )
        if self._outer_momentum:  # there from the start, as the formula of memory has it
            self._outer.state[self._shared]["momentum_buffer"] = torch.zeros_like(self._shared)

    def clear_gradients(self) -> None:
        if self._steps_since == 0:
            self._shared.copy_(self._flat_parameters)  # also of a checkpoint
        super().clear_gradients()

    def clip_factor(self, scale: float = 1.0) -> float | None:
        return super().clip_factor(scale) if self._step_weight else scale

    def update(self) -> bool:
        return super().update() if self._step_weight else True

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:  # noqa: ARG002
        """Count the step, and synchronize where it is due."""
        self._steps_since += 1
        self._own_weight += self._step_weight
        self._all_weight += batch.global_targets or math.nan  # nan: peers know their own alone
        began = time.perf_counter()
        if self._steps_since == self._period:
            self._synchronize()
        return time.perf_counter() - began

    def describe_nonfinite(self, batch: Batch, loss: float) -> str:
        """Describe this rank's gradients alone. Not collective."""
        own = find_nonfinite([parameter.grad for parameter in self._parameters], loss)
        return describe_rank_nonfinite(batch.step, self.rank, own, self._names)

    def finish_epoch(self) -> None:
        if self._steps_since:
            self._synchronize()

    @torch.no_grad()
    def _synchronize(self) -> None:
        """Synchronize: all ranks end with the same parameters, and continue from there."""
        weight = self._all_weight
        if math.isnan(weight):
            weight = self.group.sum([self._own_weight])[0] or 1.0
        share = self._own_weight / weight
        self._shared.grad = self._flat_parameters.sub_(self._shared).mul_(-share)
        if self._reducer is not None:
            self._reducer.flush()
            self.communicated_bytes += self._shared.nbytes
        self._outer.step()
        self._shared.grad = None
        self._flat_parameters.copy_(self._shared)
        self._steps_since, self._own_weight, self._all_weight = 0, 0.0, 0.0

    def rank_local_state(self) -> RankLocalState | None:
        """Return this rank's optimizer state, and the outer momentum."""
        rule = self._known_rule
        if rule is not None and not (STATE_NAMES[rule.kind] or self._outer_momentum):
            return None
        tensors = {
            f"inner:{name}:{quantity}": value
            for name, state in self.optimizer_state().items()
            for quantity, value in state.items()
            if isinstance(value, Tensor)
        }
        tensors |= {f"outer::{name}": value for name, value in self._outer_tensors().items()}
        return RankLocalState(self._state_name, [], tensors)

    def load_rank_local_state(self, state: RankLocalState) -> bool:
        if state.name != self._state_name:
            return False
        states, outer = self.optimizer_state(), self._outer_tensors()
        for key, value in state.tensors.items():
            kind, rest = key.split(":", 1)
            name, quantity = rest.rsplit(":", 1)
            if kind == "outer":
                outer[quantity].copy_(value)
            else:
                states[name][quantity] = value
        return True

    @property
    def _state_name(self) -> str:
        return f"local SGD ({'nesterov' if self._outer_momentum else 'average'})"

    def _outer_tensors(self) -> dict[str, Tensor]:
        state = self._outer.state.get(self._shared, {})
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        traffic = self._reducer.expected_traffic() if self._reducer else None
        has_momentum = bool(self._outer_momentum)
        return local_costs(self._trained, traffic, period=self._period, has_momentum=has_momentum)

    def state_bytes(self) -> StateBytes:
        inner = super().state_bytes()
        outer = [v for state in self._outer.state.values() for v in state.values()]
        return StateBytes(
            inner.parameters + self._shared.nbytes,
            inner.gradients,
            inner.optimizer + storage_bytes([v for v in outer if isinstance(v, Tensor)]),
        )
