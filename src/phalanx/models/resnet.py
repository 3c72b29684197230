"""A small residual network for images: a stem, three stages of blocks, a maximum over the pixels.

Source: He et al. 2016, "Deep residual learning for image recognition", arXiv:1512.03385, with the
group normalisation of Wu & He 2018, arXiv:1803.08494. Batch normalisation would take its means over
the samples that one rank happens to have, so that the same training on another number of ranks, or
in pieces, would be another training; the groups of one sample are the same everywhere.

The paper takes the mean over the pixels in the end, where this takes the maximum, which learned
faster in short trainings on images that are mostly background.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.models.options import RESNET_STAGES, DataShape

MOST_GROUPS = 8


class ResNet(nn.Sequential):
    """images (N, channels, H, W) → logits (N, classes).

    The stages have `width`, 2 `width` and 4 `width` channels and `layers` blocks each; the second
    and the third halve height and width.
    """

    def __init__(self, *, width: int, layers: int, shape: DataShape) -> None:
        blocks: dict[str, nn.Module] = {}
        channels = width
        for stage in range(RESNET_STAGES):
            for block in range(layers):
                into = width * 2**stage
                stride = 2 if stage and not block else 1
                blocks[f"stage{stage + 1}_block{block + 1}"] = ResidualBlock(channels, into, stride)
                channels = into
        super().__init__(
            OrderedDict[str, nn.Module](
                stem=Stem(shape.inputs[0], width),
                **blocks,
                pool=nn.AdaptiveMaxPool2d(1),
                flatten=nn.Flatten(),
                output=nn.Linear(channels, shape.num_classes),
            )
        )


class Stem(nn.Module):
    """images (N, channels, H, W) → (N, width, H, W)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
        self.norm = _norm(width)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(images)))


class ResidualBlock(nn.Module):
    """(N, channels, H, W) → (N, into, H ÷ stride, W ÷ stride), by two convolutions past which the
    input goes on; where its size does not fit, through a convolution of one pixel."""

    def __init__(self, channels: int, into: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, into, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(into)
        self.conv2 = nn.Conv2d(into, into, 3, padding=1, bias=False)
        self.norm2 = _norm(into)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != into:
            self.shortcut = nn.Conv2d(channels, into, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(MOST_GROUPS, channels), channels)
