"""A model of a user's with all that a stage must hand on: `--model staged_models.py:…`."""

import torch
from torch import nn


def drawing(channels: int, image_size: tuple[int, int], num_classes: int) -> nn.Module:
    """Return a chain with batch norm, layers that change their input in place, and random numbers
    in several places; its first layer is frozen."""
    height, width = image_size
    layers = nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(4, 6, 3, padding=1).to(memory_format=torch.channels_last),
        nn.BatchNorm2d(6, momentum=None),
        nn.Dropout(0.2, inplace=True),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SELU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * height * width, 12),
        nn.AlphaDropout(0.3),
        nn.Linear(12, 11),
        nn.Tanh(),
        nn.Linear(11, num_classes),
    )
    layers[0].requires_grad_(False)
    return layers
