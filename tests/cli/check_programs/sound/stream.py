"""Samples in their own order, which draw; statistics of all ranks."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset

import phalanx


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Noise."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(64):
            yield torch.randn(8), torch.randn(1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.SyncBatchNorm(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = phalanx.start(model, optimizer, Stream(), batch_size=16)
for inputs, targets in run:
    run.backward(mse_loss(run.model(inputs), targets))
