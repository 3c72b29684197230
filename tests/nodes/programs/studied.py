"""A program of `phalanx.start` for studies: `studied.py <epochs> <seconds that a step sleeps>`."""

import sys
import time

import torch

import phalanx

epochs, pause_s = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 1))
run = phalanx.start(
    model,
    torch.optim.SGD(model.parameters(), lr=1e-4),
    (torch.randn(64, 64), torch.randn(64, 1)),
    batch_size=16,
    epochs=epochs,
    strategy="auto",
    timeout_s=20,
)
for batch in run:
    time.sleep(pause_s)
    run.backward(torch.nn.functional.mse_loss(run.model(batch.inputs), batch.targets))
