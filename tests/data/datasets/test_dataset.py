"""Data sets as the training loop gets them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phalanx.data.datasets.catalog import digits_file
from phalanx.data.datasets.dataset import Dataset, load_dataset
from phalanx.errors import UserError


@pytest.fixture(scope="module")
def digits_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the digits in it, made once for this file."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(folder))
        load_dataset("digits", train_samples=1)
        assert digits_file().is_file()
    return folder


@pytest.fixture
def with_digits(digits_cache: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(digits_cache))


def check_shapes(dataset: Dataset, train_samples: int, dtype: torch.dtype) -> None:
    for images, labels, samples in (
        (dataset.train_inputs, dataset.train_targets, train_samples),
        (dataset.validation_inputs, dataset.validation_targets, 10_000),
    ):
        assert images.shape == (samples, 1, 28, 28)
        assert images.dtype == dtype
        assert images.is_contiguous()
        assert labels.shape == (samples,)
        assert labels.dtype == torch.int64


def check_normalised(dataset: Dataset) -> None:
    assert abs(dataset.train_inputs.mean().item()) < 1e-3
    assert abs(dataset.train_inputs.std().item() - 1) < 1e-3


@pytest.mark.usefixtures("with_digits")
@pytest.mark.parametrize("name", ["auto", "digits"])
def test_digits(name: str) -> None:
    dataset = load_dataset(name)
    assert dataset.name == "digits"
    assert "digits" in dataset.reason
    check_shapes(dataset, 60_000, torch.float32)
    check_normalised(dataset)


@pytest.mark.parametrize("name", ["auto", "mnist"])
def test_mnist(mnist_folder: Path, name: str) -> None:
    dataset = load_dataset(name, mnist_folder)
    assert dataset.name == "mnist"
    assert str(mnist_folder) in dataset.reason
    check_shapes(dataset, 60_000, torch.float32)
    check_normalised(dataset)
    assert dataset.train_targets[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.usefixtures("with_digits")
def test_the_first_samples_in_another_precision() -> None:
    few = load_dataset("digits", dtype=torch.float64, train_samples=37)
    check_shapes(few, 37, torch.float64)
    whole = load_dataset("digits")
    torch.testing.assert_close(few.train_inputs.float(), whole.train_inputs[:37])
    assert torch.equal(few.train_targets, whole.train_targets[:37])


@pytest.mark.usefixtures("with_digits")
@pytest.mark.parametrize("train_samples", [0, -1, 60_001])
def test_samples_that_are_not_there(train_samples: int) -> None:
    message = f"--train-samples must be 1 to 60000 for digits, not {train_samples}"
    with pytest.raises(UserError, match=message):
        load_dataset("digits", train_samples=train_samples)


def test_a_wrong_checksum_is_refused(mnist_copy: Path, mnist_folder: Path) -> None:
    """Labels of Fashion-MNIST have the same size, as have images with a flipped bit."""
    path = mnist_copy / "train-labels-idx1-ubyte"
    path.write_bytes(b"\0\0\x08\x01\0\0\xea\x60" + bytes(60_000))
    with pytest.raises(UserError, match=f"{path} has a wrong checksum: expected SHA-256 65a50cbb"):
        load_dataset("auto", mnist_copy)


@pytest.mark.usefixtures("with_digits")
def test_the_cache_is_read_without_scikit_learn() -> None:
    program = (
        "import sys; from phalanx.data.datasets.dataset import load_dataset;"
        "load_dataset('digits', train_samples=1); print('sklearn' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout == "False\n", answer.stderr
