"""MNIST from its four published files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.datasets.arrays import Arrays, Bytes
from phalanx.data.datasets.idx import parse_idx
from phalanx.data.published.file_sets import MNIST, FileSet
from phalanx.data.published.published_file import PublishedFile, find_file, read_verified
from phalanx.errors import UserError

IMAGE_SHAPE = (28, 28)


def read_mnist(folder: Path) -> Arrays:
    """The data in `folder`, byte for byte what was published.

    Raises: UserError when a file is missing, damaged, truncated or has a wrong checksum.
    """
    return read_idx_files(folder, MNIST)


def read_idx_files(folder: Path, files: FileSet) -> Arrays:
    """Four files: images and labels for training, images and labels for validation.

    Raises: UserError when one is missing, truncated, or not what its name says.
    """
    train_images, train_labels, test_images, test_labels = files.files
    return Arrays(
        train_images=_read(folder, train_images, files, IMAGE_SHAPE),
        train_labels=_read(folder, train_labels, files, ()),
        validation_images=_read(folder, test_images, files, IMAGE_SHAPE),
        validation_labels=_read(folder, test_labels, files, ()),
    )


def _read(folder: Path, file: PublishedFile, files: FileSet, of_one: tuple[int, ...]) -> Bytes:
    path = find_file(folder, file)
    if path is None:
        raise UserError(f"{folder / file.usual_name} is missing; {files.how_to_get}")
    array = parse_idx(read_verified(path, file), str(path), num_dims=1 + len(of_one))
    if array.shape[1:] != of_one:
        sizes = " x ".join(map(str, array.shape))
        raise UserError(f"{path} holds {sizes} values, not images of 28 x 28\n{file.remedy}")
    return array.astype(np.uint8, copy=False)
