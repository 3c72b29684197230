"""Data are noise of NumPy's, which nobody has seeded."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
model = nn.Linear(8, 1)
data = np.random.rand(64, 8), np.random.default_rng().random((64, 1))
run = phalanx.start(
    model.double(), torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16
)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
