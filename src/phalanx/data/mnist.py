"""MNIST from its four published files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.arrays import Arrays, Bytes
from phalanx.data.idx import parse_idx
from phalanx.data.published import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    PublishedFile,
    find_file,
    read_verified,
)
from phalanx.errors import UserError


def read_mnist(folder: Path) -> Arrays:
    """The data in `folder`, byte for byte what was published.

    Raises: UserError when a file is missing, damaged, truncated or has a wrong checksum.
    """
    return Arrays(
        train_images=_read(folder, TRAIN_IMAGES, num_dims=3),
        train_labels=_read(folder, TRAIN_LABELS, num_dims=1),
        validation_images=_read(folder, TEST_IMAGES, num_dims=3),
        validation_labels=_read(folder, TEST_LABELS, num_dims=1),
    )


def _read(folder: Path, file: PublishedFile, *, num_dims: int) -> Bytes:
    path = find_file(folder, file)
    if path is None:
        raise UserError(f"{folder / file.gz_name} is missing; `phalanx data fetch mnist` gets it")
    array = parse_idx(read_verified(path, file), str(path), num_dims=num_dims)
    return array.astype(np.uint8, copy=False)
