"""Choice of a run's data set and its folder, by checking which files exist, without PyTorch.

The launcher calls this before it starts ranks, so that missing data costs a second, not a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from phalanx.data.datasets.language_reference import VOCABULARY, describe_reference
from phalanx.data.published.file_sets import (
    CIFAR10,
    FASHION,
    MNIST,
    FileSet,
    check_size,
    find_file,
    find_folder,
    search_roots,
    what_is_missing,
)
from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE, DataShape
from phalanx.records.files import cache_folder

Name = Literal["digits", "mnist", "fashion", "cifar10", "text"]

# Size of MNIST and Fashion-MNIST, and of digits, which were made to that size.
NUM_TRAIN_SAMPLES = 60_000
NUM_VALIDATION_SAMPLES = 10_000

CONTEXT = 64
"""Characters of a sample of text."""

CIFAR_SHAPE = DataShape(inputs=(3, 32, 32))
TEXT_SHAPE = DataShape(inputs=(CONTEXT,), num_classes=VOCABULARY)

FILE_SETS: Mapping[Name, FileSet] = {"mnist": MNIST, "fashion": FASHION, "cifar10": CIFAR10}
"""The data that is files of others; the rest is embedded."""


NEEDS_SCIKIT_LEARN = (
    "the embedded digits need scikit-learn, which is not installed: pip install 'phalanx[study]', "
    "or choose other data with --dataset or --data"
)


@dataclass(frozen=True, kw_only=True)
class DatasetChoice:
    """Chosen data set and its folder."""

    name: Name
    folder: Path | None
    """Folder of its files; None for embedded data."""

    reason: str
    """One sentence for the user: the data that was taken, and why."""

    @property
    def shape(self) -> DataShape:
        """Shape of a sample, and the number of classes."""
        return {"text": TEXT_SHAPE, "cifar10": CIFAR_SHAPE}.get(self.name, MNIST_SHAPE)


def resolve(name: str, data_root: Path | None = None) -> DatasetChoice:
    """Decide between the data sets; `auto` takes MNIST where it is found, digits otherwise.

    data_root: where files are; None looks into $PHALANX_DATA and the user's cache folder.
    Raises: UserError when the name is unknown, or files are asked for and missing, or one of them
            is truncated, or this Python came without the text. A damaged copy of MNIST is an error
            for `auto` too: no silent exchange.
    """
    match name:
        case "digits":
            return _digits("embedded digits, as requested")
        case "text":
            return DatasetChoice(name="text", folder=None, reason=f"text: {describe_reference()}")
        case "auto":
            return _mnist_or_digits(search_roots(data_root))
        case "mnist" | "fashion" | "cifar10":
            return _files(name, search_roots(data_root))
        case _:
            known = ", ".join(("auto", *get_args(Name)))
            raise UserError(f"unknown data set {name!r}: choose one of {known}")


def _mnist_or_digits(roots: list[Path]) -> DatasetChoice:
    folder = find_folder(roots, MNIST)
    if folder is None:
        lack = what_is_missing(roots, MNIST).removeprefix("there is ")
        reason = f"embedded digits ({lack}; `phalanx data fetch mnist` gets it)"
        return _digits(reason)
    _check_sizes(folder, MNIST)
    return DatasetChoice(name="mnist", folder=folder, reason=f"mnist (found by auto) in {folder}")


def _digits(reason: str) -> DatasetChoice:
    """Raises: UserError when they would have to be made and what makes them is not installed."""
    if find_spec("sklearn") is None:
        with suppress(OSError):
            if digits_file().exists():
                return DatasetChoice(name="digits", folder=None, reason=reason)
        raise UserError(NEEDS_SCIKIT_LEARN)
    return DatasetChoice(name="digits", folder=None, reason=reason)


def _files(name: Name, roots: list[Path]) -> DatasetChoice:
    files = FILE_SETS[name]
    folder = find_folder(roots, files)
    if folder is None:
        raise UserError(f"{what_is_missing(roots, files)}\n{files.how_to_get}")
    _check_sizes(folder, files)
    return DatasetChoice(name=name, folder=folder, reason=f"{name} from {folder}, as requested")


def _check_sizes(folder: Path, files: FileSet) -> None:
    for file in files.files:
        path = find_file(folder, file)
        assert path is not None, "the folder holds all of them"
        check_size(path, file)


def fetch_folder(data_root: Path | None) -> Path:
    """Return the folder for a download of MNIST: the first that a run would search."""
    root = data_root or search_roots(None)[0]
    return find_folder([root], MNIST) or root / "mnist"


def digits_file() -> Path:
    """Return the path of the embedded digits. Its number changes with the images."""
    return cache_folder() / "digits-2.npz"
