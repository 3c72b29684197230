"""Trains on samples that are read one after the other."""

import torch
from torch import nn
from torch.optim import SGD

import phalanx

model = nn.Linear(3, 1)
stream = (torch.randn(3) for _ in range(64))
for _ in phalanx.start(model, SGD(model.parameters(), lr=0.1), stream, batch_size=16):
    pass
