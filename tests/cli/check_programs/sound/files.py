"""A program that writes checkpoints, records and its model, and logs the time."""

import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
data = torch.randn(65, 8), torch.randn(65, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = phalanx.start(
    model,
    optimizer,
    data,
    batch_size=16,
    epochs=2,
    checkpoint_dir="saved",
    checkpoints=phalanx.Checkpoints(every_steps=1),
    resume=True,
    run_dir="records",
    records=phalanx.Records(on_metrics=lambda step, _: Path(f"metrics-{step}").touch()),
)
began = time.perf_counter()
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
    run.log(seconds=time.perf_counter() - began)
torch.save(model, "model.pt")
