"""CIFAR-10 in its binary version: records of a label and 3 × 32 × 32 pixels, plane by plane.

Source: Krizhevsky 2009, "Learning multiple layers of features from tiny images".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.datasets.arrays import Arrays, Bytes
from phalanx.data.datasets.check_labels import check_labels
from phalanx.data.published.file_sets import CIFAR10
from phalanx.data.published.published_file import PublishedFile, find_file, read_verified
from phalanx.errors import UserError

IMAGE_SHAPE = (3, 32, 32)


def read_cifar10(folder: Path) -> Arrays:
    """The data in `folder`: 50,000 images for training, 10,000 for validation.

    Raises: UserError when a file is missing, truncated or not as it should be.
    """
    *training, test = CIFAR10.files
    records = np.concatenate([_records(folder, file) for file in training])
    validation = _records(folder, test)
    check_labels(records[:, 0], f"{folder} (data_batch_1 to 5)", training[0].remedy)
    check_labels(validation[:, 0], str(folder / test.name), test.remedy)
    return Arrays(
        train_images=_images(records),
        train_labels=records[:, 0],
        validation_images=_images(validation),
        validation_labels=validation[:, 0],
    )


def _records(folder: Path, file: PublishedFile) -> Bytes:
    """(10000, 3073)."""
    path = find_file(folder, file)
    if path is None:
        raise UserError(f"{folder / file.name} is missing; {CIFAR10.how_to_get}")
    content = np.frombuffer(bytearray(read_verified(path, file)), np.uint8)
    return content.reshape(-1, 1 + np.prod(IMAGE_SHAPE))


def _images(records: Bytes) -> Bytes:
    return records[:, 1:].reshape(-1, *IMAGE_SHAPE)
