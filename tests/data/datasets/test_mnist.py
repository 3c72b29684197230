"""MNIST as everybody knows it."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.datasets.arrays import read_files
from phalanx.errors import UserError


def test_the_arrays_are_those_of_mnist(mnist_folder: Path) -> None:
    arrays = read_files("mnist", mnist_folder)
    assert arrays.train_inputs.shape == (60_000, 28, 28)
    assert arrays.validation_inputs.shape == (10_000, 28, 28)
    assert arrays.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(arrays.validation_targets).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip


def test_a_missing_file_is_named(mnist_copy: Path) -> None:
    (mnist_copy / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz is missing"):
        read_files("mnist", mnist_copy)
