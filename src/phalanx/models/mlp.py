"""The multi-layer perceptron of the scaling studies: 784-256-128-10, 235,146 parameters."""

from torch import Tensor, nn


class MLP(nn.Module):
    """images (N, 1, 28, 28) → logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(28 * 28, 256)
        self.hidden2 = nn.Linear(256, 128)
        self.output = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        x = self.hidden1(x).relu()
        x = self.hidden2(x).relu()
        logits: Tensor = self.output(x)
        return logits
