"""Rank 0 dies in the second step; the last of the others fails some steps later."""

import os
import signal

import torch
from torch import nn
from torch.optim import SGD

import phalanx

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, torch.randn(64, 3), batch_size=16, epochs=4, timeout_s=60)
was_last = run.rank == run.size - 1
for batch in run:
    run.backward(run.model(batch.inputs).sum())
    if batch.step == 1 and int(os.environ["RANK"]) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if batch.step == 6 and was_last:
        raise ArithmeticError(f"rank {run.rank} of {run.size} has had enough")
