"""Training images shifted and mirrored: the same for (seed, epoch, sample), whoever reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.mixing import mixed, mixed_each

SHIFT_SHARE = 8
"""An image is shifted by up to one part of so many of its shorter side, each way."""


def augmented(
    images: NDArray[Any], samples: NDArray[np.int64], *, seed: int, epoch: int
) -> NDArray[Any]:
    """(n, channels, height, width), of the dtype of `images`: each shifted by a few pixels, where
    black (0) comes in, and every other one mirrored.

    samples: (n,) the numbers of the images in the data. Cost: two copies.
    """
    height, width = images.shape[2:]
    most = min(height, width) // SHIFT_SHARE
    down, right, mirror = choices(samples, most, seed=seed, epoch=epoch)
    padded = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    shifted: NDArray[Any] = windows[np.arange(len(images)), :, most - down, most - right]
    shifted[mirror] = shifted[mirror][..., ::-1]
    return shifted


def choices(
    samples: NDArray[np.int64], most: int, *, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each sample: pixels down and right, in [-most, most], and if it is mirrored."""
    bits = mixed_each(mixed(seed, epoch), samples)
    number = np.uint64(2 * most + 1)
    down = (bits & np.uint64(0xFFFFF)) % number
    right = (bits >> np.uint64(20) & np.uint64(0xFFFFF)) % number
    mirror = (bits >> np.uint64(40) & np.uint64(1)).astype(bool)
    return down.astype(np.int64) - most, right.astype(np.int64) - most, mirror
