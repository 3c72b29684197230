"""The learning rate grows with the ranks, though the batch does not."""

import os

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
data = torch.randn(64, 8), torch.randn(64, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * int(os.environ.get("WORLD_SIZE", "1")))
run = phalanx.start(model, optimizer, data, batch_size=16)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
