"""Each rank seeds its own data."""

import os

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(int(os.environ.get("RANK", "0")))
data = torch.randn(64, 8), torch.randn(64, 1)
model = nn.Linear(8, 1)
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
