"""Fashion-MNIST as users have it, in files that are made here: the right format, other pixels."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.data.datasets.arrays import read_files
from phalanx.data.datasets.catalog import resolve
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.datasets.inventory import inventory
from phalanx.data.published.file_sets import FASHION, is_verified
from phalanx.errors import UserError


def make_fashion(folder: Path, *, zipped: tuple[int, ...] = ()) -> Path:
    """Image i has the pixel i % 784 set to i % 251, and the label i % 10.

    zipped: which of the four files are."""
    folder.mkdir(parents=True)
    contents = [part for n in (60_000, 10_000) for part in (idx(images(n)), idx(labels(n)))]
    for number, (file, content) in enumerate(zip(FASHION.files, contents, strict=True)):
        if number in zipped:
            (folder / file.gz_name).write_bytes(gzip.compress(content, 1))
        else:
            (folder / file.name).write_bytes(content)
    return folder


def images(n: int) -> np.ndarray:
    pixels = np.zeros((n, 784), np.uint8)
    pixels[np.arange(n), np.arange(n) % 784] = np.arange(n) % 251
    return pixels.reshape(n, 28, 28)


def labels(n: int) -> np.ndarray:
    return (np.arange(n) % 10).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fashion(tmp_path_factory.mktemp("root") / "FashionMNIST" / "raw", zipped=(1, 2))


def test_what_was_written_is_read(folder: Path) -> None:
    arrays = read_files("fashion", folder)
    for found, expected in zip(
        arrays, (images(60_000), labels(60_000), images(10_000), labels(10_000)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_the_data_set_is_found_and_normalised(folder: Path) -> None:
    dataset = load_dataset("fashion", folder.parents[1], train_samples=30)
    assert dataset.reason == f"fashion from {folder}, as requested"
    assert dataset.train_inputs.shape == (30, 1, 28, 28)
    assert dataset.validation_inputs.shape == (10_000, 1, 28, 28)
    assert dataset.train_targets.tolist() == [*range(10)] * 3
    pixel = dataset.train_inputs[29, 0].flatten()[29].item()
    assert pixel == pytest.approx((29 / 255 - 0.2860) / 0.3530, abs=1e-6)
    assert dataset.train_inputs.dtype == torch.float32


@pytest.mark.parametrize("layout", ["fashion", "FashionMNIST/raw", "fashion-mnist", ""])
def test_where_it_is_looked_for(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "root"
    made = (root / layout) if layout else root
    made.mkdir(parents=True)
    for file in FASHION.files:
        with (made / file.name).open("wb") as empty:
            empty.truncate(file.num_bytes)
    assert resolve("fashion", root).folder == made


def test_mnist_is_not_taken_for_it(mnist_copy: Path) -> None:
    for root in (mnist_copy, mnist_copy.parent):
        with pytest.raises(
            UserError, match=f"there is no Fashion-MNIST in {root}\ndownload its four"
        ):
            resolve("fashion", root)
    assert resolve("auto", mnist_copy).name == "mnist"


def test_a_truncated_file_is_named_with_its_size(tmp_path: Path) -> None:
    made = tmp_path / "fashion"
    made.mkdir()
    for file in FASHION.files:
        with (made / file.name).open("wb") as empty:
            empty.truncate(file.num_bytes - (file is FASHION.files[2]))
    path = made / "t10k-images-idx3-ubyte"
    message = (
        f"{path} is truncated: expected 7840016 bytes, found 7840015\nremove it and download it"
    )
    with pytest.raises(UserError, match=message):
        resolve("fashion", tmp_path)
    states = {holding.name: holding.state for holding in inventory(tmp_path)}
    assert states["fashion"] == "damaged: t10k-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (10, "is damaged: label 7 is 10, and there are 10 classes"),
        (8, "is damaged: its classes have 999 to 1001 images, not 1000 each"),
    ],
)
def test_labels_that_cannot_be_right(folder: Path, tmp_path: Path, bad: int, message: str) -> None:
    made = tmp_path / "fashion"
    made.mkdir()
    for path in folder.iterdir():
        (made / path.name).symlink_to(path)
    wrong = labels(10_000)
    wrong[7] = bad
    path = made / FASHION.files[3].name
    path.unlink()
    path.write_bytes(idx(wrong))
    with pytest.raises(UserError, match=f"{path} {message}"):
        read_files("fashion", made)
    states = {holding.name: holding.state for holding in inventory(tmp_path)}
    assert states["fashion"] == "damaged: labels"


def test_images_of_another_size(folder: Path, tmp_path: Path) -> None:
    made = tmp_path / "fashion"
    made.mkdir()
    for path in folder.iterdir():
        (made / path.name).symlink_to(path)
    path = made / FASHION.files[0].name
    path.unlink()
    path.write_bytes(idx(images(60_000).reshape(120_000, 14, 28)))
    with pytest.raises(UserError, match="holds 120000 x 14 x 28 values, not images of 28 x 28"):
        read_files("fashion", made)


def test_the_published_checksum_is_that_of_the_zipped_file(folder: Path, tmp_path: Path) -> None:
    states = {holding.name: holding.state for holding in inventory(folder.parents[1])}
    assert states["fashion"] == "sizes and labels right"
    content = gzip.compress(b"what was published")
    published = replace(FASHION.files[1], num_bytes=18, zipped_md5=hashlib.md5(content).hexdigest())
    (tmp_path / published.gz_name).write_bytes(content)
    assert is_verified(tmp_path, published)
    (tmp_path / published.gz_name).write_bytes(content + b"!")
    assert not is_verified(tmp_path, published)
    (tmp_path / published.gz_name).unlink()
    (tmp_path / published.name).write_bytes(b"what was published")
    assert not is_verified(tmp_path, published), "nothing to compare it with"
