"""The samples, read once a node: the parent writes those of the run into two files, and the ranks
map them. Whatever the number of ranks, the pixels are in memory once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from phalanx.data.datasets.images import Arrays, rows_of
from phalanx.scratch.arrays import Array, Bytes, Labels, Rows


class Samples:
    """Images and their labels, as rows of bytes."""

    def __init__(self, rows: Bytes, dtype: DTypeLike) -> None:
        """rows: (n, pixels + 1), the label last."""
        self._rows = rows
        self._taken = Rows(rows.shape[1], np.uint8)
        self._inputs = Rows(rows.shape[1] - 1, dtype)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: NDArray[np.int64]) -> tuple[Array, Labels]:
        """(k, pixels) from 0 to 1, and (k,); the pixels are valid until the next call."""
        taken, inputs = self._taken.of(len(indices)), self._inputs.of(len(indices))
        # With mode="raise" NumPy would write to a temporary array first.
        np.take(self._rows, indices, axis=0, out=taken, mode="clip")
        np.multiply(taken[:, :-1], 1 / 255, out=inputs, dtype=inputs.dtype)
        return inputs, taken[:, -1].astype(np.intp)


def write_images(
    folder: Path, arrays: Arrays, *, train_samples: int | None, validation_samples: int | None
) -> None:
    """The first so many samples of each part; None: all."""
    train = rows_of(arrays.train_images[:train_samples], arrays.train_labels[:train_samples])
    validation = rows_of(
        arrays.validation_images[:validation_samples],
        arrays.validation_labels[:validation_samples],
    )
    np.save(folder / "train.npy", train)
    np.save(folder / "validation.npy", validation)


def map_images(folder: Path, dtype: DTypeLike) -> tuple[Samples, Samples]:
    """Map the training and the validation samples that `write_images` wrote."""
    return _mapped(folder / "train.npy", dtype), _mapped(folder / "validation.npy", dtype)


def unlink_images(folder: Path) -> None:
    """Take the files' names away, once all ranks have mapped them: the samples stay in memory as
    long as a rank has them, and nothing is left behind however the run ends."""
    for name in ("train.npy", "validation.npy"):
        (folder / name).unlink()


def _mapped(path: Path, dtype: DTypeLike) -> Samples:
    return Samples(np.asarray(np.load(path, mmap_mode="r")), dtype)
