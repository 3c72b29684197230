"""Models and losses as a user writes them, for `--model own.py:…` and `--loss own.py:…`."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Perceptron(nn.Module):
    def __init__(self, num_inputs: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_inputs, width)
        self.second = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x.flatten(1)).tanh())
        return out


def perceptron(inputs: tuple[int, ...], num_classes: int, width: int = 16) -> nn.Module:
    return Perceptron(torch.Size(inputs).numel(), num_classes, width)


class Autoencoder(nn.Module):
    """Its outputs are two tensors, and its loss needs no class."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(num_inputs, 4), nn.Linear(4, num_inputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        return self.decoder(self.encoder(x).tanh()), x


def autoencoder(inputs: tuple[int, ...]) -> nn.Module:
    return Autoencoder(torch.Size(inputs).numel())


def squares(outputs: tuple[Tensor, Tensor], _targets: Tensor) -> Tensor:
    return F.mse_loss(*outputs)


def margins(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.multi_margin_loss(outputs, targets)


def failing() -> nn.Module:
    return nn.Linear(3, -1)


def frozen(num_classes: int) -> nn.Module:
    return nn.Linear(3, num_classes).requires_grad_(False)


def no_module() -> dict[str, int]:
    return {}


def demanding(colour: str) -> nn.Module:
    return nn.Linear(1, len(colour))


def too_few(inputs: tuple[int, ...]) -> nn.Module:
    return perceptron(inputs, 3)
