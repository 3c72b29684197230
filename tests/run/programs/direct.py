"""Calls the model in place of `run.model`, which a wrapper of PyTorch's would not see."""

import sys

import torch
from torch import nn

import phalanx

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, torch.randn(20, 4), batch_size=5, strategy=sys.argv[1])
for (inputs,) in run:
    run.backward(model(inputs).square().mean())
assert run.training_loss() > 0
run.print("evaluated after the loop", run.evaluate(lambda *_: 1.0, torch.zeros(3)))
