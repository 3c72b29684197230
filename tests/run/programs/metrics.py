"""Metrics of a program to TensorBoard, by its writer on rank 0."""

import os
import sys
from functools import cache

import torch
from tensorboardX import SummaryWriter

import phalanx

os.chdir(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = (torch.randn(64, 3), torch.randn(64, 1))


@cache
def writer() -> SummaryWriter:
    return SummaryWriter("logs")


def to_tensorboard(step: int, metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        writer().add_scalar(name, value, step)


told = phalanx.Records(on_metrics=to_tensorboard)
run = phalanx.start(model, optimizer, data, batch_size=16, epochs=2, records=told)
for batch in run:
    loss = torch.nn.functional.mse_loss(run.model(batch.inputs), batch.targets)
    run.backward(loss)
    if batch.ends_epoch:
        run.log(epoch=batch.epoch, samples=run.reduce(batch.num_samples))
if run.is_main:
    writer().close()
