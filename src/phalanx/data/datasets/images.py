"""Images and labels of a chosen data set as arrays; needs no PyTorch, unless the embedded digits
must be made first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.datasets.array_cache import cached
from phalanx.data.datasets.arrays import Arrays, Bytes
from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, DatasetChoice, Name, digits_file
from phalanx.data.datasets.cifar10 import read_cifar10
from phalanx.data.datasets.fashion_mnist import read_fashion
from phalanx.data.datasets.mnist import read_mnist


def read_images(choice: DatasetChoice) -> Arrays:
    """The images that `catalog.resolve` has chosen.

    Raises: UserError when a file is missing, truncated or damaged.
    """
    if choice.folder is not None:
        return read_files(choice.name, choice.folder)
    return unpack(cached(digits_file(), _make_packed_digits))


def read_files(name: Name, folder: Path) -> Arrays:
    """The images of a data set that is files of others.

    Raises: UserError when a file is missing, truncated or damaged.
    """
    readers = {"mnist": read_mnist, "fashion": read_fashion, "cifar10": read_cifar10}
    return readers[name](folder)


def _make_packed_digits() -> Bytes:
    from phalanx.data.datasets.digits import make_digits  # not needed when the cache is there

    return pack(make_digits())


def pack(arrays: Arrays) -> Bytes:
    """(train + validation, 785): a row a sample, its pixels and then its label; one file, so that
    images and labels cannot part."""
    images = np.concatenate([arrays.train_images, arrays.validation_images])
    labels = np.concatenate([arrays.train_labels, arrays.validation_labels])
    return np.concatenate([images.reshape(len(images), -1), labels[:, None]], axis=1)


def unpack(rows: Bytes) -> Arrays:
    """The inverse of `pack`."""
    images, labels = rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]
    train, validation = slice(None, NUM_TRAIN_SAMPLES), slice(NUM_TRAIN_SAMPLES, None)
    return Arrays(images[train], labels[train], images[validation], labels[validation])
