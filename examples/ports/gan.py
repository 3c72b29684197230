"""Learn to draw points as from eight spots on a ring: a generator against a critic.

Points and noise are made anew for each step.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx

NOISE = 8  # numbers that a point is made of


def make_batch(number: int) -> tuple[Tensor, Tensor]:
    """Return points (n, 2) around eight spots on a circle of radius 1, and noise (n, NOISE)."""
    angles = 2 * math.pi / 8 * torch.randint(8, (number,))
    spots = torch.stack([angles.cos(), angles.sin()], dim=1)
    return spots + 0.05 * torch.randn(number, 2), torch.randn(number, NOISE)


class Pair(nn.Module):
    """Generator of points and critic of points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = layers(NOISE, width, 2)
        self.critic = layers(2, width, 1)


def layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return three layers."""
    first, second = nn.Linear(inputs, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, outputs))


def critic_loss(model: Pair, real: Tensor, drawn: Tensor) -> Tensor:
    """Return how badly the critic tells real points from drawn ones."""
    return (F.softplus(-model.critic(real)) + F.softplus(model.critic(drawn))).mean()


def generator_loss(model: Pair, drawn: Tensor) -> Tensor:
    """Return how badly the generator deceives the critic."""
    return F.softplus(-model.critic(drawn)).mean()


@torch.no_grad()
def test(model: Pair, samples: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return both losses, and the mean distance of drawn points from the circle."""
    real, noise = samples
    drawn = model.generator(noise)
    return {
        "critic": critic_loss(model, real, drawn),
        "generator": generator_loss(model, drawn),
        "distance": (drawn.norm(dim=1) - 1).abs().mean(),
    }


LINE = "step {}: loss of critic {critic:.2f}, of generator {generator:.2f}, off by {distance:.2f}"


def train(args: argparse.Namespace) -> nn.Module:
    """Return generator and critic, trained."""
    torch.manual_seed(args.seed)
    test_batch = make_batch(1000)
    model = Pair(args.width)
    optimizers = {
        "generator": torch.optim.Adam(model.generator.parameters(), args.lr, betas=(0.5, 0.9)),
        "critic": torch.optim.Adam(model.critic.parameters(), args.lr, betas=(0.5, 0.9)),
    }

    def update(name: str, loss: Tensor) -> None:
        run.backward(loss, optimizer=name)

    run = phalanx.start(model, optimizers, make_batch, batch_size=args.batch_size, steps=args.steps)
    for step, (real, noise) in enumerate(run, start=1):
        drawn = model.generator(noise)
        update("critic", critic_loss(model, real, drawn.detach()))
        update("generator", generator_loss(model, drawn))
        if step % 100 == 0:
            run.print(LINE.format(step, **run.evaluate(test, test_batch)))
    return model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train by the options in `words`; None: those of the command line."""
    parser = argparse.ArgumentParser(description="generator and critic")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return train(parser.parse_args(words))


if __name__ == "__main__":
    main()
