"""A training whose C kernels are of another version."""

import torch
from torch import nn
from torch.optim import SGD

from phalanx.comm import compiled

compiled.INTERFACE += 1

import phalanx  # noqa: E402

model = nn.Linear(4, 1)
phalanx.start(model, SGD(model.parameters(), lr=0.1), torch.randn(24, 4), batch_size=6)
