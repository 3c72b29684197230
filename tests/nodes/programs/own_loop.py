"""A program of `phalanx.start`: `own_loop.py <folder or nothing> <what rank 1 does in step 3>`."""

import sys

import torch

import phalanx

folder, ending = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
run = phalanx.start(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1),
    (torch.randn(64, 4), torch.randn(64, 1)),
    batch_size=16,
    epochs=2,
    run_dir=folder or None,
    timeout_s=20,
)
for step, batch in enumerate(run):
    run.backward(torch.nn.functional.mse_loss(run.model(batch.inputs), batch.targets))
    if step == 2 and run.rank == 1:
        exec(ending)
run.print("trained")
