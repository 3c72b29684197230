"""A program of `phalanx.start`: `own_loop.py <folder or nothing> <ending>`."""

import os
import sys

import torch

import phalanx

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = torch.randn(64, 4), torch.randn(64, 1)
folder = sys.argv[1]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(
    model,
    optimizer,
    data,
    batch_size=16,
    epochs=2,
    timeout_s=20,
    **({"run_dir": folder} if folder else {}),
)
for batch in run:
    run.backward(torch.nn.functional.mse_loss(run.model(batch.inputs), batch.targets))
run.print("trained")
if os.environ.get("RANK", run.rank) in (1, "1"):
    exec(sys.argv[2])
run.close()
