"""Solve the heat equation by a network that is told nothing but the equation.

A rod of length 1 whose ends are kept at 0 begins as a sine; how it cools is known exactly, to
measure the error by. The data are random points of place and time, made anew for each step.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

CONDUCTIVITY = 0.2


def exact(x: Tensor, t: Tensor) -> Tensor:
    """Return the temperature at place x and time t."""
    return torch.exp(-CONDUCTIVITY * math.pi**2 * t) * torch.sin(math.pi * x)


def make_points(number: int) -> tuple[Tensor, Tensor]:
    """Return places and times, (n, 1), from 0 to 1."""
    return torch.rand(number, 1), torch.rand(number, 1)


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """Return the mean square by which the network violates the equation, start and ends."""
    x, t = x.requires_grad_(), t.requires_grad_()
    u = model(torch.cat([x, t], dim=1))
    u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
    start = model(torch.cat([x, torch.zeros_like(t)], dim=1)) - torch.sin(math.pi * x)
    ends = model(torch.cat([x.round(), t], dim=1))
    return ((u_t - CONDUCTIVITY * u_xx) ** 2 + start**2 + ends**2).mean()


@torch.no_grad()
def test(model: nn.Module, points: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean error of the temperature."""
    return (model(torch.cat(points, dim=1)) - exact(*points)).abs().mean()


def train(args: argparse.Namespace) -> nn.Module:
    """Return the trained network."""
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(2, args.width),
        nn.Tanh(),
        nn.Linear(args.width, args.width),
        nn.Tanh(),
        nn.Linear(args.width, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    test_points = make_points(1000)
    batches = (make_points(args.batch_size) for _ in range(args.steps))
    for step, (x, t) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss = loss_of(model, x, t)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: error {test(model, test_points):.4f}")
    return model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train by the options in `words`; None: those of the command line."""
    parser = argparse.ArgumentParser(description="heat equation")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=200, help="points of a step")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return train(parser.parse_args(words))


if __name__ == "__main__":
    main()
