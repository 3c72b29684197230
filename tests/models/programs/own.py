"""Models and losses as a user writes them, for `--model own.py:…` and `--loss own.py:…`."""

from typing import ClassVar

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


class Noisy(Perceptron):
    """Random numbers in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.training))


def noisy(inputs: tuple[int, ...], num_classes: int) -> nn.Module:
    return Noisy(torch.Size(inputs).numel(), num_classes, 8)


def tower(inputs: tuple[int, ...], num_classes: int) -> nn.Module:
    """A chain whose first and third layer can be split, for `tower_plan`."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(torch.Size(inputs).numel(), 12),
        nn.Tanh(),
        nn.Linear(12, 9),
        nn.Tanh(),
        nn.Linear(9, 6),
        nn.Tanh(),
        nn.Linear(6, num_classes),
    )


tower_plan = {"1": "column", "3": "row"}
unfinished_plan = {"1": "column"}


def plan_with_misprint() -> dict[str, str]:
    return {"one": "column", "3": "row"}


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(context, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position[: tokens.shape[1]]


class Layer(nn.Module):
    """Attention and two layers, of three heads; a part of the heads is the same, but narrower."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        q, k, v = (
            layer(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Layers in a list, a parameter beside modules, a plan and stages of its own."""

    parallelize_plan: ClassVar = {
        "layers.*.[qkv]": "column",
        "layers.*.o": "row",
        "layers.*.up": "column",
        "layers.*.down": "row",
    }
    pipeline_stages = ("embedding", "layers.*", "head")

    def __init__(self, vocabulary: int, context: int, width: int = 12) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, context, width)
        self.layers = nn.ModuleList(Layer(width, 3) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def transformer(vocabulary: int, context: int) -> nn.Module:
    return Transformer(vocabulary, context)


class Skipping(nn.Module):
    """Its forward does more than its stages."""

    pipeline_stages = ("first", "second")

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Flatten(), nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).relu()


def skipping() -> nn.Module:
    return Skipping()


def tied() -> nn.Module:
    layer = nn.Linear(784, 784)
    return nn.Sequential(nn.Flatten(), layer, layer)


def entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """The built-in loss, as a user writes it."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())
