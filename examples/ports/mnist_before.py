"""Read handwritten digits with a convolutional network.

MNIST where its folder is given, by --data or $PHALANX_DATA; else the digits of scikit-learn.
"""

import argparse
import os
from collections.abc import Sequence

import torch
from digits import load
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

LINE = "epoch {}: loss {loss:.3f}, {accuracy:.1%} of the test images read right"


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc1 = nn.Linear(32 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


@torch.no_grad()
def test(model: nn.Module, samples: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the mean loss, and the share of the images that are read right."""
    model.eval()
    images, labels = samples
    scores = model(images)
    right = (scores.argmax(dim=1) == labels).to(scores.dtype)
    return {"loss": F.nll_loss(scores, labels), "accuracy": right.mean()}


def train(args: argparse.Namespace) -> nn.Module:
    """Return the trained network."""
    torch.manual_seed(args.seed)
    train_set, test_set = load(args.data, args.samples)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    loader = DataLoader(train_set, args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), labels)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(LINE.format(epoch + 1, **test(model, test_set[:])))
    return model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train by the options in `words`; None: those of the command line."""
    parser = argparse.ArgumentParser(description="MNIST")
    parser.add_argument("--data", default=os.environ.get("PHALANX_DATA"), help="folder of MNIST")
    parser.add_argument("--samples", type=int, default=6000, help="train with the first so many")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="factor of lr after an epoch")
    parser.add_argument("--seed", type=int, default=1)
    return train(parser.parse_args(words))


if __name__ == "__main__":
    main()
