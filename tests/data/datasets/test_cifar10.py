"""CIFAR-10's binary version, in files that are made here: the right format, other pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from phalanx.data.datasets.arrays import read_files
from phalanx.data.datasets.catalog import resolve
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.datasets.inventory import inventory
from phalanx.data.published.file_sets import CIFAR10
from phalanx.errors import UserError

RECORD_BYTES = 1 + 3 * 32 * 32


def make_cifar(folder: Path) -> Path:
    """Image i of a batch has the label i % 10 and all pixels 0, but for the first and last two."""
    folder.mkdir(parents=True)
    for number, file in enumerate(CIFAR10.files):
        (folder / file.name).write_bytes(records(number).tobytes())
    return folder


def records(batch: int) -> np.ndarray:
    rows = np.zeros((10_000, RECORD_BYTES), np.uint8)
    rows[:, 0] = np.arange(10_000) % 10
    if batch in (1, 5):  # of the last batch for training and that for validation
        rows[:20, 1:] = np.random.default_rng(batch).integers(0, 256, (20, RECORD_BYTES - 1))
    rows[-2:, 1:] = batch + 1
    return rows


def expected_image(row: np.ndarray) -> np.ndarray:
    """As the format is described: 1024 bytes of red, row by row, then green, then blue."""
    image = np.empty((3, 32, 32), np.uint8)
    for channel in range(3):
        for y in range(32):
            for x in range(32):
                image[channel, y, x] = row[1 + channel * 1024 + y * 32 + x]
    return image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cifar(tmp_path_factory.mktemp("root") / "cifar-10-batches-bin")


def linked(folder: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for path in folder.iterdir():
        (to / path.name).symlink_to(path)
    return to


def test_what_was_written_is_read(folder: Path) -> None:
    arrays = read_files("cifar10", folder)
    assert arrays.train_inputs.shape == (50_000, 3, 32, 32)
    assert arrays.validation_inputs.shape == (10_000, 3, 32, 32)
    assert (arrays.train_targets == np.arange(50_000) % 10).all()
    assert (arrays.validation_targets == np.arange(10_000) % 10).all()
    for i in (0, 7, 19):
        np.testing.assert_array_equal(
            arrays.train_inputs[10_000 + i], expected_image(records(1)[i])
        )
        np.testing.assert_array_equal(arrays.validation_inputs[i], expected_image(records(5)[i]))
    for batch in range(5):
        assert (arrays.train_inputs[10_000 * (batch + 1) - 2 :][:2] == batch + 1).all()


def test_the_data_set_is_found_and_normalised(folder: Path) -> None:
    dataset = load_dataset(
        "cifar10", folder.parent, train_samples=10_020, validation_samples=20, dtype=torch.float64
    )
    assert dataset.shape == resolve("cifar10", folder.parent).shape
    assert dataset.shape.inputs == (3, 32, 32)
    assert dataset.reason == f"cifar10 from {folder}, as requested"
    assert dataset.train_inputs.shape == (10_020, 3, 32, 32)
    assert dataset.train_inputs.is_contiguous()
    assert dataset.train_inputs.dtype == torch.float64
    assert dataset.validation_targets.tolist() == [*range(10)] * 2
    pixels = (
        torch.from_numpy(read_files("cifar10", folder).train_inputs[10_003].astype(float)) / 255
    )
    mean, deviation = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]]).double()
    expected = (pixels - mean[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(dataset.train_inputs[10_003], expected, rtol=0, atol=1e-6)


def test_states(folder: Path, tmp_path: Path) -> None:
    def state(root: Path) -> str:
        return {holding.name: holding.state for holding in inventory(root)}["cifar10"]

    assert state(tmp_path) == "not there"
    assert state(folder.parent) == "sizes and labels right"
    damaged = linked(folder, tmp_path / "cifar10") / "data_batch_3.bin"
    damaged.unlink()
    damaged.write_bytes(b"\x0a" + records(2).tobytes()[1:])
    assert state(tmp_path) == "damaged: labels"
    with pytest.raises(UserError, match=r"label 20000 is 10, and there are 10 classes\nremove it"):
        read_files("cifar10", damaged.parent)
    damaged.write_bytes(b"\0" * 1000)
    assert state(tmp_path) == "damaged: data_batch_3.bin"
    message = (
        f"{damaged} is truncated: expected 30730000 bytes, found 1000\nremove it and download the"
    )
    with pytest.raises(UserError, match=message):
        resolve("cifar10", tmp_path)
    damaged.unlink()
    lacks = f"the CIFAR-10 in {damaged.parent} lacks data_batch_3.bin\ndownload the binary version"
    with pytest.raises(UserError, match=lacks):
        resolve("cifar10", tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    pickles = tmp_path / "cifar-10-batches-py"
    pickles.mkdir()
    (pickles / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UserError) as caught:
        resolve("cifar10", tmp_path)
    first, second = str(caught.value).splitlines()
    assert first == (
        f"the CIFAR-10 in {pickles} consists of pickles, which can run any program and are not read"
    )
    assert second.startswith(
        "download the binary version, cifar-10-binary.tar.gz, from https://www.cs"
    )


def test_without_files_it_is_said_how_to_get_them(cache_home: Path) -> None:
    message = f"there is no CIFAR-10 in {cache_home / 'phalanx'}\ndownload the binary version"
    with pytest.raises(UserError, match=message):
        resolve("cifar10")
