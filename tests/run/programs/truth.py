"""Trains small models by `phalanx.start`; rank 0 writes their parameters to a file."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import phalanx


def classifier() -> nn.Module:
    """With dropout, which agrees only where random numbers belong to micro-batches."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


def train(strategy: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    inputs, targets = torch.randn(53, 6), torch.randint(3, (53,))  # the last batch has 5 samples
    model = classifier()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3
    )
    run = phalanx.start(
        model,
        optimizer,
        (inputs, targets),
        batch_size=16,
        micro_batches=6,
        epochs=13,
        steps=50,
        clip_norm=0.5,
        seed=7,
        strategy=strategy,
    )
    seen = 0
    for batch in run:
        loss = F.cross_entropy(run.model(batch.inputs), batch.targets)
        run.backward(loss)
        seen += batch.num_samples
        if batch.ends_epoch:
            loss = run.evaluate(
                lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), (inputs, targets)
            )
            assert loss > 0
            assert run.reduce(seen) == min(53 * (batch.epoch + 1), 53 * 12 + 32)
    return [parameter.detach().clone() for parameter in model.parameters()]


if __name__ == "__main__":
    parameters = train(sys.argv[2])
    if phalanx.World.__module__ and not torch.distributed.is_initialized():
        torch.save(parameters, sys.argv[1])
