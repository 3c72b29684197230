"""Targets are normalised by the mean and deviation of the batch at hand."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
model = nn.Linear(8, 1)
data = torch.randn(64, 8), torch.randn(64, 1)
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16)
for inputs, targets in run:
    targets = (targets - targets.mean()) / targets.std()
    run.backward(mse_loss(run.model(inputs), targets))
