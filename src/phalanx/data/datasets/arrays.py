"""Samples of a chosen data set as arrays; needs no PyTorch, unless the embedded digits
must be made first.

Sources: LeCun, Cortes & Burges, "The MNIST database of handwritten digits"; Xiao, Rasul & Vollgraf
2017, arXiv:1708.07747 (Fashion-MNIST); Krizhevsky 2009, "Learning multiple layers of features from
tiny images" (CIFAR-10).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.data.datasets.array_cache import Arrays, Bytes, cached
from phalanx.data.datasets.catalog import (
    CONTEXT,
    FILE_SETS,
    DatasetChoice,
    Name,
    digits_file,
)
from phalanx.data.datasets.idx import parse_idx
from phalanx.data.datasets.language_reference import Reference, encode, read_reference
from phalanx.data.published.file_sets import (
    CIFAR10,
    FileSet,
    PublishedFile,
    find_file,
    read_verified,
)
from phalanx.errors import UserError

NUM_CLASSES = 10
GREY, COLOURS = (28, 28), (3, 32, 32)


def read_arrays(choice: DatasetChoice) -> Arrays:
    """The samples that `catalog.resolve` has chosen.

    Raises: UserError when a file is missing, truncated or damaged.
    """
    if choice.name == "text":
        return read_text()
    if choice.folder is not None:
        return read_files(choice.name, choice.folder)
    return cached(digits_file(), _make_digits)


def _make_digits() -> Arrays:
    from phalanx.data.datasets.digits import make_digits  # not needed when the cache is there

    return make_digits()


def read_files(name: Name, folder: Path) -> Arrays:
    """The images of a data set that is files of others.

    Raises: UserError when a file is missing, truncated or damaged.
    """
    if name == "cifar10":
        return _read_cifar10(folder)
    files = FILE_SETS[name]
    shapes = (GREY, (), GREY, ())
    arrays = [_read_idx(folder, *each, files) for each in zip(files.files, shapes, strict=True)]
    if name == "fashion":  # whose checksums are not known
        for labels, file in zip(arrays[1::2], files.files[1::2], strict=True):
            check_labels(labels, f"{folder / file.name}", file.remedy)
    return Arrays(*arrays)


def _read_idx(folder: Path, file: PublishedFile, shape: tuple[int, ...], files: FileSet) -> Bytes:
    """shape: of one image or label."""
    path, content = _read(folder, file, files)
    array = parse_idx(content, str(path), num_dims=1 + len(shape))
    if array.shape[1:] != shape:
        sizes = " x ".join(map(str, array.shape))
        raise UserError(f"{path} holds {sizes} values, not images of 28 x 28\n{file.remedy}")
    return array.astype(np.uint8, copy=False)


def _read(folder: Path, file: PublishedFile, files: FileSet) -> tuple[Path, bytes]:
    path = find_file(folder, file)
    if path is None:
        raise UserError(f"{folder / file.usual_name} is missing; {files.how_to_get}")
    return path, read_verified(path, file)


def _read_cifar10(folder: Path) -> Arrays:
    """Read the binary version: records of a label and 3 × 32 × 32 pixels, plane by plane."""
    records = [
        np.frombuffer(bytearray(_read(folder, file, CIFAR10)[1]), np.uint8).reshape(
            -1, 1 + np.prod(COLOURS)
        )
        for file in CIFAR10.files
    ]
    train, validation = np.concatenate(records[:-1]), records[-1]
    test = CIFAR10.files[-1]
    check_labels(train[:, 0], f"{folder} (data_batch_1 to 5)", test.remedy)
    check_labels(validation[:, 0], str(folder / test.name), test.remedy)
    return Arrays(
        train_inputs=train[:, 1:].reshape(-1, *COLOURS),
        train_targets=train[:, 0],
        validation_inputs=validation[:, 1:].reshape(-1, *COLOURS),
        validation_targets=validation[:, 0],
    )


def check_labels(labels: Bytes, source: str, remedy: str) -> None:
    """Raises: UserError where one is no class, or classes are not equally many, as published.

    labels: (n,). It stands in for a checksum where none was published.
    """
    wrong = np.flatnonzero(labels >= NUM_CLASSES)
    if wrong.size:
        raise UserError(
            f"{source} is damaged: label {wrong[0]} is {labels[wrong[0]]}, "
            f"and there are {NUM_CLASSES} classes\n{remedy}"
        )
    counts = np.bincount(labels, minlength=NUM_CLASSES)
    if (counts != counts[0]).any():
        raise UserError(
            f"{source} is damaged: its classes have {counts.min()} to {counts.max()} images, "
            f"not {labels.size // NUM_CLASSES} each\n{remedy}"
        )


Tokens = NDArray[np.int64]


def read_text(reference: Reference | None = None) -> Arrays:
    """The samples of a text; of the running Python's reference where none is given.

    Raises: UserError when this Python came without.
    """
    training, validation = reference or read_reference()
    return Arrays(*windows(encode(training)), *windows(encode(validation)))


def windows(tokens: bytes, context: int = CONTEXT) -> tuple[Tokens, Tokens]:
    """Inputs and targets, each (n, context) and with memory of its own.

    The windows lie side by side: every character but those of the rest is an input once.
    """
    stream = np.frombuffer(tokens, np.uint8).astype(np.int64)
    used = num_windows(len(stream), context) * context
    return stream[:used].reshape(-1, context), stream[1 : used + 1].reshape(-1, context).copy()


def num_windows(num_characters: int, context: int = CONTEXT) -> int:
    """Samples that a text gives: the last character is a target only."""
    return max(0, num_characters - 1) // context
