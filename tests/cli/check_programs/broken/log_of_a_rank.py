"""The loss that is logged is that of rank 0's samples."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
data = torch.randn(64, 8), torch.randn(64, 1)
model = nn.Linear(8, 1)
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16)
for inputs, targets in run:
    loss = mse_loss(run.model(inputs), targets)
    run.backward(loss)
    run.log(loss=loss.item())
