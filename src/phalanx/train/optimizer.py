"""Construction of the optimizer from the options."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.train.config import TrainConfig

WITH_MOMENTUM = ("sgd", "lars")
LAMB_EPSILON = 1e-6
"""Value of the paper; PyTorch's Adam has 1e-8."""


def make_optimizer(
    config: TrainConfig, parameters: Iterable[nn.Parameter], learning_rate: float
) -> Optimizer:
    """Return the optimizer of the options."""
    name = config.optimizer
    rule = OptimizerConfig(
        name=name,
        learning_rate=learning_rate,
        momentum=config.momentum if name in WITH_MOMENTUM else 0.0,
        weight_decay=config.weight_decay,
        epsilon=LAMB_EPSILON if name == "lamb" else OptimizerConfig.epsilon,
        trust_coefficient=config.trust_coefficient,
    )
    return torch_optimizer(rule, parameters)
