"""The embedded data: real handwritten digits, enlarged to the size of MNIST by distortion.

The originals are the 1797 digits of 8×8 that ship with scikit-learn, from 13 writers.
Source: Alpaydin & Kaynak 1998, "Optical recognition of handwritten digits", doi:10.24432/C50P49.
Every fifth original of each class is set aside, and validation images are made of those alone.

The same bytes come out on every machine, for ever: the random numbers are those of numpy's
frozen RandomState, and the arithmetic is float64, whose rounding is some ten digits finer than
the steps of a byte. Sampling touches each image alone, so the number of threads changes nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.datasets.array_cache import Arrays, Bytes
from phalanx.data.datasets.catalog import (
    NEEDS_SCIKIT_LEARN,
    NUM_TRAIN_SAMPLES,
    NUM_VALIDATION_SAMPLES,
)
from phalanx.errors import UserError

Labels = NDArray[np.int64]

VALIDATION_EVERY = 5
TRAIN_SEED, VALIDATION_SEED = 1, 2

# MNIST fits its digits into 20 of 28 pixels.
ORIGINAL_SIZE, DIGIT_SIZE, IMAGE_SIZE = 8, 20, 28
MAX_ROTATION_DEG = 15.0
MAX_LOG_SCALE = 0.15
MAX_SHEAR = 0.25
MAX_SHIFT = 2.0  # pixels

# Ink is where the interpolated original passes the threshold; the edge is this wide.
INK_THRESHOLD = 0.48
EDGE_WIDTH = 0.5

_IMAGES_AT_ONCE = 1000  # keeps the interpolation in the processor's cache


def make_digits() -> Arrays:
    """All images and labels; about two seconds on one core, one more to import scikit-learn."""
    images, labels = read_originals()
    train, validation = split_originals(labels)
    train_sources = choose_sources(train, NUM_TRAIN_SAMPLES, TRAIN_SEED)
    validation_sources = choose_sources(validation, NUM_VALIDATION_SAMPLES, VALIDATION_SEED)
    return Arrays(
        train_inputs=distort(images[train_sources], TRAIN_SEED),
        train_targets=labels[train_sources].astype(np.uint8),
        validation_inputs=distort(images[validation_sources], VALIDATION_SEED),
        validation_targets=labels[validation_sources].astype(np.uint8),
    )


def read_originals() -> tuple[NDArray[np.float64], Labels]:
    """Images (1797, 8, 8) of whole numbers from 0 to 16, and labels (1797,)."""
    try:
        from sklearn.datasets import load_digits  # takes a second; not needed with a cache
    except ModuleNotFoundError:
        raise UserError(NEEDS_SCIKIT_LEARN) from None

    originals = load_digits()
    return originals.images.astype(np.float64), originals.target.astype(np.int64)


def split_originals(labels: Labels) -> tuple[Labels, Labels]:
    """Indices of the originals for training and for validation, the classes in equal shares."""
    is_validation = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        is_validation[of_class[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]] = True
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def choose_sources(originals: Labels, num_samples: int, seed: int) -> Labels:
    """(num_samples,) the original of each sample: all of them in random order, over and over.

    So every original serves equally often, and the first samples are a fair sample themselves.
    """
    shuffled = np.random.RandomState(seed).permutation(originals)
    return np.resize(shuffled, num_samples)


def distort(originals: NDArray[np.float64], seed: int) -> Bytes:
    """(n, 28, 28) images of the `originals` (n, 8, 8), each under its own affine map."""
    maps = torch.from_numpy(affine_maps(len(originals), seed))
    images = np.empty((len(originals), IMAGE_SIZE, IMAGE_SIZE), np.uint8)
    for start in range(0, len(originals), _IMAGES_AT_ONCE):
        part = slice(start, start + _IMAGES_AT_ONCE)
        images[part] = _draw(torch.from_numpy(originals[part]), maps[part]).numpy()
    return images


def affine_maps(num_maps: int, seed: int) -> NDArray[np.float64]:
    """(num_maps, 2, 3): from pixels of the image, counted from its centre, to the original's."""
    uniform = np.random.RandomState(seed).random_sample((6, num_maps)) * 2 - 1
    angle = np.deg2rad(MAX_ROTATION_DEG) * uniform[0]
    scale_x, scale_y = np.exp(MAX_LOG_SCALE * uniform[1:3])
    shear = MAX_SHEAR * uniform[3]
    shift_x, shift_y = MAX_SHIFT * uniform[4:6]
    cos, sin = np.cos(angle), np.sin(angle)
    linear = np.array(
        [
            [(cos + shear * sin) / scale_x, (shear * cos - sin) / scale_x],
            [sin / scale_y, cos / scale_y],
        ]
    ) * (ORIGINAL_SIZE / DIGIT_SIZE)
    offset = -(linear[:, 0] * shift_x + linear[:, 1] * shift_y)
    return np.ascontiguousarray(
        np.concatenate([linear, offset[:, None]], axis=1).transpose(2, 0, 1)
    )


def _draw(originals: Tensor, maps: Tensor) -> Tensor:
    """(n, 28, 28) uint8: bicubic interpolation, then a soft threshold that makes it a pen stroke.

    An original's value is the share of ink in a block of a scan, so where the interpolated
    share passes one half is about where the pen's edge was.
    """
    grid = _pixels() @ maps.transpose(1, 2) / (ORIGINAL_SIZE / 2)
    grid = grid.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 2)
    ink = torch.nn.functional.grid_sample(
        originals[:, None] / 16, grid, mode="bicubic", padding_mode="zeros", align_corners=False
    )
    stroke = ((ink - INK_THRESHOLD) / EDGE_WIDTH + 0.5).clamp(0, 1)
    return (stroke[:, 0] * 255).round().to(torch.uint8)


def _pixels() -> Tensor:
    """(784, 3) float64: x and y of every pixel from the centre of the image, and 1."""
    axis = torch.arange(IMAGE_SIZE, dtype=torch.float64) - (IMAGE_SIZE - 1) / 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)], dim=-1).reshape(-1, 3)
