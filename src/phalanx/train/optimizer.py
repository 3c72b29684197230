"""Construction of the update rule from the options."""

from __future__ import annotations

from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.train.config import TrainConfig

WITH_MOMENTUM = ("sgd", "lars")
LAMB_EPSILON = 1e-6
"""Of the paper; PyTorch's Adam has 1e-8."""


def update_rule(config: TrainConfig, learning_rate: float) -> OptimizerConfig:
    name = config.optimizer
    return OptimizerConfig(
        name=name,
        learning_rate=learning_rate,
        momentum=config.momentum if name in WITH_MOMENTUM else 0.0,
        weight_decay=config.weight_decay,
        epsilon=LAMB_EPSILON if name == "lamb" else OptimizerConfig.epsilon,
        trust_coefficient=config.trust_coefficient,
    )
