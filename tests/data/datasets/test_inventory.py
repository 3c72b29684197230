"""Inventory of data sets and their verification."""

import platform
import re
from pathlib import Path

from phalanx.data.datasets.catalog import digits_file
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.datasets.inventory import InventoryEntry, inventory


def holdings(data_root: Path | None = None) -> dict[str, InventoryEntry]:
    return {holding.name: holding for holding in inventory(data_root)}


def test_an_empty_machine(cache_home: Path) -> None:
    found = holdings()
    assert found["digits"].state == "made when first used"
    assert found["mnist"].state == "not there"
    assert found["mnist"].where == str(cache_home / "phalanx")
    assert not cache_home.exists()


def test_digits_once_made_and_once_damaged() -> None:
    load_dataset("digits", train_samples=1)
    assert holdings()["digits"].state == "verified"
    with digits_file().open("ab") as file:
        file.write(b"!")
    assert holdings()["digits"].state == "damaged; recreated when used"


def test_mnist_whole_and_damaged(mnist_copy: Path) -> None:
    found = holdings(mnist_copy.parent)["mnist"]
    assert (found.state, found.where) == ("verified", str(mnist_copy))
    assert (found.num_train_samples, found.num_validation_samples) == (60_000, 10_000)
    (mnist_copy / "t10k-labels-idx1-ubyte").write_bytes(bytes(10_008))
    assert holdings(mnist_copy)["mnist"].state == "damaged: t10k-labels-idx1-ubyte.gz"


def test_the_text_of_this_python() -> None:
    found = holdings()["text"]
    assert re.fullmatch(r"SHA-256 [0-9a-f]{16}…", found.state)
    assert found.where == f"the language reference of Python {platform.python_version()}"
    dataset = load_dataset("text")
    assert found.num_train_samples == len(dataset.train_inputs)
    assert found.num_validation_samples == len(dataset.validation_inputs)
    assert found.state.removeprefix("SHA-256 ") in dataset.reason
