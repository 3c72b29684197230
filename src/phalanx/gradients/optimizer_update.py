"""Optimizers, their hyperparameters and state names, and the coefficients of `csrc/fused.c`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

OptimizerName = Literal["adam", "adamw", "sgd", "lars", "lamb"]


class OptimizerKind(IntEnum):
    """Optimizer variant; the numbers are those of the C kernels. The steps of the last two depend
    on norms of whole layers: `parallel/layerwise.py` computes them."""

    SGD = 0
    SGD_MOMENTUM = 1
    ADAM = 2
    ADAMW = 3
    LARS = 4
    LAMB = 5


STATE_NAMES = {
    OptimizerKind.SGD: (),
    OptimizerKind.SGD_MOMENTUM: ("momentum_buffer",),
    OptimizerKind.ADAM: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.ADAMW: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.LARS: ("momentum_buffer",),
    OptimizerKind.LAMB: ("exp_avg", "exp_avg_sq"),
}
"""State tensors of each parameter, by the names of torch.optim."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer and its hyperparameters. `sgd` and `lars` use the momentum, `lars` also the
    trust coefficient; the others use betas and epsilon.

    Adam: Kingma & Ba 2015, arXiv:1412.6980; AdamW: Loshchilov & Hutter 2019, arXiv:1711.05101.
    """

    name: OptimizerName
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    trust_coefficient: float = 1e-3

    @property
    def kind(self) -> OptimizerKind:
        if self.name == "sgd":
            return OptimizerKind.SGD_MOMENTUM if self.momentum else OptimizerKind.SGD
        return OptimizerKind[self.name.upper()]

    @property
    def is_layerwise(self) -> bool:
        """Return whether an element's update depends on the rest of its parameter."""
        return self.name in ("lars", "lamb")

    def coefficients(self, learning_rate: float, step: int) -> tuple[float, ...]:
        """Return the coefficients of the formula in update number `step`, counted from 1."""
        assert not self.is_layerwise, "the step depends on whole layers"
        if self.name == "sgd":
            return (learning_rate, self.weight_decay, self.momentum)
        beta1, beta2 = self.betas
        decay = self.weight_decay if self.name == "adam" else 1 - learning_rate * self.weight_decay
        return (
            learning_rate / (1 - beta1**step),
            decay,
            1 - beta1,
            beta2,
            1 - beta2,
            1 / math.sqrt(1 - beta2**step),
            self.epsilon,
        )
