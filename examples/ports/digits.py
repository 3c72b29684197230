"""Images of handwritten digits, for the programs beside this one: MNIST or scikit-learn's."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

NUM_TEST = 500


def load(folder: str | None, num_train: int) -> tuple[TensorDataset, TensorDataset]:
    """Return samples to train with, at most `num_train`, and to test with: images (n, 1, 28, 28)
    from 0 to 1, labels (n,).

    folder: has MNIST's four files, in itself or in `mnist`; None: digits of scikit-learn, enlarged.
    """
    if folder is None:
        from sklearn.datasets import load_digits

        images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
        images = interpolate(images.reshape(-1, 1, 8, 8) / 16, size=28, mode="bilinear")
        train = images[:-NUM_TEST], labels[:-NUM_TEST]
        test = images[-NUM_TEST:], labels[-NUM_TEST:]
    else:
        root = Path(folder, "mnist") if Path(folder, "mnist").is_dir() else Path(folder)
        train, test = read(root, "train"), read(root, "t10k")
    dtype = torch.get_default_dtype()
    return (
        TensorDataset(train[0][:num_train].to(dtype), train[1][:num_train]),
        TensorDataset(test[0][:NUM_TEST].to(dtype), test[1][:NUM_TEST]),
    )


def read(folder: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of two files in MNIST's format."""
    pixels = gzip.decompress((folder / f"{name}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28) / 255)
    return images, torch.from_numpy(np.frombuffer(labels, np.uint8).astype(np.int64))
