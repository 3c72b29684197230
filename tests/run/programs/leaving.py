"""Rank 1 leaves its loop after an update, or both ranks do, and the program ends."""

import sys

import torch
from torch import nn
from torch.optim import SGD

import phalanx

model = nn.Linear(4, 2)
run = phalanx.start(
    model,
    SGD(model.parameters(), lr=0.1),
    (torch.randn(20, 4), torch.randn(20, 2)),
    batch_size=4,
    timeout_s=60.0,
    run_dir=sys.argv[2],
)
for batch in run:
    if batch.step == 1 and (run.rank == 1 or sys.argv[1] == "all"):
        break
    run.backward((run.model(batch.inputs) - batch.targets).square().mean())
print(f"rank {run.rank} has left", flush=True)
