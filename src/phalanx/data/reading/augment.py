"""Augmentation by random shifts and flips, a pure function of (seed, epoch, sample)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.hashing import hash_each, hash_seed

SHIFT_DIVISOR = 8
"""The largest shift is the shorter side of the image divided by this."""


def augment(
    images: NDArray[Any], samples: NDArray[np.int64], *, seed: int, epoch: int
) -> NDArray[Any]:
    """Return (n, channels, height, width), of the dtype of `images`: each shifted by a few pixels,
    zero-padded, and flipped horizontally with probability 1/2.

    samples: (n,) the numbers of the images in the data. Cost: two copies.
    """
    height, width = images.shape[2:]
    max_shift = min(height, width) // SHIFT_DIVISOR
    down, right, mirror = draw_augmentations(samples, max_shift, seed=seed, epoch=epoch)
    padded = np.pad(images, ((0, 0), (0, 0), (max_shift, max_shift), (max_shift, max_shift)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    shifted: NDArray[Any] = windows[np.arange(len(images)), :, max_shift - down, max_shift - right]
    shifted[mirror] = shifted[mirror][..., ::-1]
    return shifted


def draw_augmentations(
    samples: NDArray[np.int64], max_shift: int, *, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each sample: pixels down and right, in ±max_shift, and if it is mirrored."""
    bits = hash_each(hash_seed(seed, epoch), samples)
    number = np.uint64(2 * max_shift + 1)
    down = (bits & np.uint64(0xFFFFF)) % number
    right = (bits >> np.uint64(20) & np.uint64(0xFFFFF)) % number
    mirror = (bits >> np.uint64(40) & np.uint64(1)).astype(bool)
    return down.astype(np.int64) - max_shift, right.astype(np.int64) - max_shift, mirror
