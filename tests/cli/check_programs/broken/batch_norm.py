"""Each micro-batch is normalised by itself."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
data = torch.randn(64, 8), torch.randn(64, 1)
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
