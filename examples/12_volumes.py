"""A 3-D U-Net finds balls in noisy volumes: data of your own, packed once, read at random.

    phalanx data pack examples/12_volumes.py:samples volumes.pack
    python examples/12_volumes.py volumes.pack
    mpiexec -n 2 python examples/12_volumes.py volumes.pack

Different from 11: data come from a pack, which `samples` filled; put your own files in its place.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool3d

import phalanx

SIZE, COUNT = 16, 160


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Yield volumes (1, 16, 16, 16) with two balls in noise, and masks of the balls."""
    random = np.random.default_rng(0)
    places = np.stack(np.meshgrid(*3 * [np.arange(SIZE)], indexing="ij"), axis=-1)
    for _ in range(COUNT):
        centers, radii = random.uniform(3, 13, (2, 1, 1, 1, 3)), random.uniform(2, 4, (2, 1, 1, 1))
        mask = (np.linalg.norm(places - centers, axis=-1) < radii).any(axis=0, keepdims=True)
        volume = mask + random.normal(0, 0.7, mask.shape)
        yield {"inputs": volume.astype(np.float32), "targets": mask.astype(np.uint8)}


def block(inputs: int, outputs: int) -> nn.Module:
    layer = nn.Conv3d(inputs, outputs, 3, padding=1)
    return nn.Sequential(layer, nn.GroupNorm(4, outputs), nn.ReLU())


class UNet(nn.Module):
    """U-Net down to a quarter of the size; each level up also gets outputs of its level down."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = block(1, 8), block(8, 16), block(16, 32)
        self.up2, self.up1, self.head = block(48, 16), block(24, 8), nn.Conv3d(8, 1, 1)

    def forward(self, volume: Tensor) -> Tensor:
        full = self.down1(volume)
        half = self.down2(max_pool3d(full, 2))
        quarter = self.bottom(max_pool3d(half, 2))
        half = self.up2(torch.cat([interpolate(quarter, scale_factor=2.0), half], 1))
        return self.head(self.up1(torch.cat([interpolate(half, scale_factor=2.0), full], 1)))


def dice(found: Tensor, mask: Tensor) -> Tensor:
    """Return the overlap of masks, from 0 to 1: (n,) for (n, 1, 16, 16, 16)."""
    both, each = (found * mask).flatten(1).sum(1), (found + mask).flatten(1).sum(1)
    return 2 * both / each.clamp(min=1)


def overlap(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return dice((model(batch[0]) > 0).float(), batch[1]).mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = phalanx.start(model, optimizer, sys.argv[1], batch_size=8, epochs=3)
    for batch in run:
        run.backward(1 - dice(run.model(batch.inputs).sigmoid(), batch.targets).mean())
        if batch.ends_epoch:
            score = run.evaluate(overlap, sys.argv[1])  # the pack's validation samples
            run.print(f"{score:.1%} of balls never seen are found, by {run.size} ranks")
