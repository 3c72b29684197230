"""From the options to the rule by which parameters are updated."""

from __future__ import annotations

from phalanx.comm.update import UpdateRule
from phalanx.train.config import TrainConfig


def update_rule(config: TrainConfig, learning_rate: float) -> UpdateRule:
    return UpdateRule(
        name=config.optimizer,
        learning_rate=learning_rate,
        momentum=config.momentum if config.optimizer == "sgd" else 0.0,
        weight_decay=config.weight_decay,
    )
