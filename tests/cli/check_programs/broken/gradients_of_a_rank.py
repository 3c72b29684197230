"""A hook changes the gradients on one rank."""

import os
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx


def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Halve gradients on every rank but the first."""
    if os.environ.get("RANK", "0") != "0":
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad / 2


torch.manual_seed(0)
data = torch.randn(64, 8), torch.randn(64, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(halve)
run = phalanx.start(model, optimizer, data, batch_size=16)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
