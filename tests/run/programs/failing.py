"""A program whose last rank, or each of them, ends before its run does."""

import sys

import torch
from torch import nn
from torch.optim import SGD

import phalanx

model = nn.Linear(4, 1)
run = phalanx.start(
    model, SGD(model.parameters(), lr=0.1), torch.randn(24, 4), batch_size=6, run_dir=sys.argv[1]
)
for batch in run:
    loss = run.model(batch.inputs).square()
    if batch.step == 2 and run.rank == run.size - 1:
        match sys.argv[2]:
            case "error":
                raise ValueError("no good")
            case "mistake":
                run.backward(loss)
            case "leave":
                break
    run.backward(loss.mean())
