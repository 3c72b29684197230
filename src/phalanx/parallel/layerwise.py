"""Optimizers that scale each layer's step by the norm of its weights, for large batches.

With a large batch the steps are few and have to be long; how long a layer can bear depends on the
ratio of its weights to its gradient, which differs by orders of magnitude between layers. Here
every parameter's step is a fixed part of its own norm.

Parameters with one dim (biases, the gains of norms) are updated without such a ratio, at the
learning rate itself: their norm begins at nothing and says nothing of what they bear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.gradients.norms import squares_of

Squares = Callable[[Tensor], Tensor]
"""Function from sums of squares over what this rank holds, (quantities, parameters) float64, to
those over whole parameters."""


def keep_squares(squares: Tensor) -> Tensor:
    """Return `squares` unchanged: this rank holds full parameters."""
    return squares


class _Layerwise(Optimizer):
    def __init__(self, parameters: Any, defaults: dict[str, Any], squares: Squares) -> None:
        super().__init__(parameters, defaults)
        self.squares = squares

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # a copy has what PyTorch's optimizers have, and nothing else
        self.__dict__.setdefault("squares", keep_squares)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient. Collective where parameters are sharded:
        every rank must then have gradients of the same ones.

        Args:
            closure: Function that computes the loss again, called first. None: none.

        Returns:
            The value of `closure`; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if parameters:
                gradients = [p.grad for p in parameters if p.grad is not None]
                self._update(group, parameters, gradients)
        return loss

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> None:
        raise NotImplementedError

    def _norms(self, parameters: list[Tensor], other: list[Tensor]) -> list[list[float]]:
        """Return the norms of the full parameters, and of the tensors that belong to them."""
        squares = torch.stack([squares_of(parameters), squares_of(other)])
        norms: list[list[float]] = self.squares(squares).sqrt().tolist()
        return norms

    def _state(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """Return the state `name` of the parameters; zeros before the first update."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


class LARS(_Layerwise):
    """SGD with momentum whose step is scaled, for each parameter, to the norm of its weights.

    For a parameter w with gradient g, λ = η ‖w‖ / (‖g‖ + β ‖w‖), v ← m v + γ λ (g + β w), w ← w −
    v, with the learning rate γ, the trust coefficient η, weight decay β and momentum m. λ is 1 for
    parameters with one dim, and where either norm is 0. The learning rate is inside the momentum,
    unlike in `torch.optim.SGD`.

    Cost: one more reading of weights and gradients than SGD, for the norms. Source: You, Gitman &
    Ginsburg 2017, arXiv:1708.03888, algorithm 1.

    Example::

        optimizer = phalanx.LARS(model.parameters(), lr=1.0, trust_coefficient=0.02)

    Args:
        parameters: Parameters, or groups of them, as every optimizer of PyTorch takes them.
        lr: Learning rate γ.
        momentum: Momentum m, the share of the last step in the next one.
        weight_decay: Weight decay β.
        trust_coefficient: Trust coefficient η.
        squares: Function from sums of squares over the shards of this rank to those over full
            parameters; `phalanx.start` sets it where its strategy shards parameters.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        squares: Squares = keep_squares,
    ) -> None:
        constants = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(parameters, constants, squares)

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> None:
        decay, trust = group["weight_decay"], group["trust_coefficient"]
        weights, slopes = self._norms(parameters, gradients)
        rates = [
            group["lr"] * (trust * w / (g + decay * w) if p.dim() > 1 and w > 0 and g > 0 else 1.0)
            for p, w, g in zip(parameters, weights, slopes, strict=True)
        ]
        changes = list(torch._foreach_mul(gradients, rates))
        if decay:
            decays = torch._foreach_mul(parameters, [decay * rate for rate in rates])
            torch._foreach_add_(changes, decays)
        velocities = self._state(parameters, "momentum_buffer")
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, changes)
        torch._foreach_sub_(parameters, velocities)


class LAMB(_Layerwise):
    """Adam whose step is scaled, for each parameter, to the norm of its weights.

    For a parameter x with Adam's direction r = m̂ / (√v̂ + ε), x ← x − γ ‖x‖ / ‖r + β x‖ · (r + β
    x), with the learning rate γ and weight decay β. The ratio of norms is 1 for parameters with one
    dim, and where either norm is 0; φ of the paper is the identity.

    Cost: one more reading of weights and steps than Adam, for the norms. Source: You et al. 2020,
    arXiv:1904.00962, algorithm 2.

    Example::

        optimizer = phalanx.LAMB(model.parameters(), lr=0.02, weight_decay=0.01)

    Args:
        parameters: Parameters, or groups of them, as every optimizer of PyTorch takes them.
        lr: Learning rate γ.
        betas: Shares of the old averages of gradients and of their squares in the new ones.
        eps: Constant ε that is added to the root of the squares.
        weight_decay: Weight decay β.
        squares: As of `LARS`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        squares: Squares = keep_squares,
    ) -> None:
        constants = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, constants, squares)

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> None:
        beta1, beta2 = group["betas"]
        count = self._count(parameters)
        first, second = self._state(parameters, "exp_avg"), self._state(parameters, "exp_avg_sq")
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        steps = list(torch._foreach_div(second, 1 - beta2**count))
        torch._foreach_sqrt_(steps)
        torch._foreach_add_(steps, group["eps"])
        torch._foreach_reciprocal_(steps)
        torch._foreach_mul_(steps, first)
        torch._foreach_div_(steps, 1 - beta1**count)
        if group["weight_decay"]:
            torch._foreach_add_(steps, parameters, alpha=group["weight_decay"])
        weights, lengths = self._norms(parameters, steps)
        rates = [
            -group["lr"] * (w / s if p.dim() > 1 and w > 0 and s > 0 else 1.0)
            for p, w, s in zip(parameters, weights, lengths, strict=True)
        ]
        torch._foreach_mul_(steps, rates)
        torch._foreach_add_(parameters, steps)

    def _count(self, parameters: list[Tensor]) -> float:
        """Return the number of this update, from 1; the same for all parameters, which are updated
        together."""
        for parameter in parameters:
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32)
            state["step"] += 1
        count: float = self.state[parameters[0]]["step"].item()
        return count
