"""A server's shard of the parameters: their optimizer, and its state by the parameters' names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.vector import views_of


class ServerShard:
    """Values [span.start, span.stop) of the parameters' vector, and torch.optim's update of them.

    An update of values is independent of the other values, so one optimizer of a slice makes the
    numbers that an optimizer of the parameters would make.
    """

    def __init__(self, vector: Tensor, span: range, rule: OptimizerConfig) -> None:
        """vector: (n,), which is updated in place."""
        self.span = span
        self.values = nn.Parameter(vector[span.start : span.stop], requires_grad=False)
        self.quantities = STATE_NAMES[rule.kind]
        """Names of what the optimizer keeps for every value."""
        self._optimizer = torch_optimizer(rule, [self.values])
        self._counts_steps = rule.name != "sgd"

    @torch.no_grad()
    def update(self, gradient: Tensor, learning_rate: float) -> None:
        """Update by a gradient, (len(span),)."""
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self.values.grad = gradient
        self._optimizer.step()
        self.values.grad = None

    def state(self) -> list[Tensor]:
        """Return (len(span),) of each quantity; zeros before the first update."""
        state = self._optimizer.state.get(self.values, {})
        return [state.get(name, torch.zeros_like(self.values)) for name in self.quantities]

    def state_tensors(self) -> list[Tensor]:
        """Return the tensors of the optimizer's state."""
        return list(self._optimizer.state.get(self.values, {}).values())

    def load_optimizer_state(
        self, parameters: Sequence[nn.Parameter], optimizer: Optimizer
    ) -> None:
        """Take over `optimizer`'s state of all parameters, which that then drops."""
        taken = self._optimizer.state[self.values]
        for name in self.quantities:
            whole = [
                optimizer.state[p].get(name, torch.zeros_like(p)).flatten() for p in parameters
            ]
            taken[name] = torch.cat(whole)[self.span.start : self.span.stop].clone()
        if self._counts_steps:
            steps = [state["step"] for state in optimizer.state.values() if "step" in state]
            taken["step"] = max(steps, default=torch.tensor(0.0)).clone()
        optimizer.state.clear()

    @property
    def steps(self) -> float:
        """Updates made, where the optimizer counts them."""
        return float(self._optimizer.state.get(self.values, {}).get("step", 0.0))


def export_optimizer_state(
    rule: OptimizerConfig,
    whole: Sequence[Tensor],
    steps: float,
    parameters: Sequence[nn.Parameter],
    optimizer: Optimizer,
) -> None:
    """Give `optimizer` the state of all parameters, as if it had made every step itself.

    whole: (n,) of each quantity, over all servers. steps: that they have made.
    """
    counted = {"step": torch.tensor(steps)} if rule.name != "sgd" else {}
    for parameter, *views in zip(
        parameters, *(views_of(vector, parameters) for vector in whole), strict=True
    ):
        own = {name: value.clone() for name, value in counted.items()}
        optimizer.state[parameter] = own | dict(zip(STATE_NAMES[rule.kind], views, strict=True))
