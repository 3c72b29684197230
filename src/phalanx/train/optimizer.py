"""Construction of the optimizer from the options."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from phalanx import LAMB, LARS
from phalanx.train.config import TrainConfig


def make_optimizer(config: TrainConfig, parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    """Return the optimizer of the options; PyTorch's where it has one, fused: one kernel over all
    parameters, two to three times faster than its default."""
    decay, momentum = config.weight_decay, config.momentum
    match config.optimizer:
        case "adam":
            return Adam(parameters, lr=lr, weight_decay=decay, fused=True)
        case "adamw":
            return AdamW(parameters, lr=lr, weight_decay=decay, fused=True)
        case "sgd":
            return SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
        case "lamb":
            return LAMB(parameters, lr=lr, weight_decay=decay)
        case "lars":
            trust = config.trust_coefficient
            return LARS(
                parameters, lr=lr, momentum=momentum, weight_decay=decay, trust_coefficient=trust
            )
