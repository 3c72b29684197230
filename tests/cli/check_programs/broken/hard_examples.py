"""Samples come with noise that grows with the loss that this rank has seen."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

import phalanx

torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(64, 8), torch.randn(64, 1)
last = [1.0]


class Harder(Dataset[tuple[Tensor, Tensor]]):
    """Inputs of a size that follows the loss."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return INPUTS[number] * last[0], TARGETS[number]


model = nn.Linear(8, 1)
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), Harder(), batch_size=16)
for inputs, targets in run:
    loss = mse_loss(run.model(inputs), targets)
    last[0] = loss.item()
    run.backward(loss)
