"""Batch norm and noise, with a cut that does not depend on the ranks; a float32 constant."""

import torch
from torch import nn
from torch.nn.functional import linear, mse_loss

import phalanx

torch.manual_seed(0)
table = torch.randn(8, 8, dtype=torch.float32)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
data = torch.randn(64, 8), torch.randn(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, data, batch_size=24, bitwise=True, micro_batches=6)
for inputs, targets in run:
    noisy = linear(inputs, table) + 0.1 * torch.randn_like(inputs)
    run.backward(mse_loss(run.model(noisy), targets))
