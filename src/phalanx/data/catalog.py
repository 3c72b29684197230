"""Which data set a run takes, and from where: decided by looking at files, without PyTorch.

The launcher asks here before it starts ranks, so that missing data costs a second, not a start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from phalanx.data.published import MNIST_FILES, check_size, find_file
from phalanx.data.reference import describe_reference
from phalanx.data.vocabulary import VOCABULARY
from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE, DataShape

Name = Literal["digits", "mnist", "text"]

# Of the images: both data sets have the size of MNIST.
NUM_TRAIN_SAMPLES = 60_000
NUM_VALIDATION_SAMPLES = 10_000

CONTEXT = 64
"""Characters of a sample of text."""

TEXT_SHAPE = DataShape(inputs=(CONTEXT,), num_classes=VOCABULARY)

# A root may be the folder of the files, hold it, or be the root that torchvision was given.
_LAYOUTS = ("", "mnist", "MNIST/raw")
_HOW_TO_GET = (
    "get it with `phalanx data fetch mnist`, or name its folder with --data-root or $PHALANX_DATA"
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The data set that is taken."""

    name: Name
    folder: Path | None
    """Where its files are; None for embedded data."""

    reason: str
    """What was taken and why, one sentence for the user."""

    @property
    def shape(self) -> DataShape:
        """Of a sample, and the number of classes."""
        return TEXT_SHAPE if self.name == "text" else MNIST_SHAPE


def resolve(name: str, data_root: Path | None = None) -> Choice:
    """Decide between the data sets; `auto` takes MNIST where it is found, digits otherwise.

    data_root: where MNIST is; None looks into $PHALANX_DATA and the user's cache folder.
    Raises: UserError when the name is unknown, or MNIST is asked for and missing, or a file of
            it is truncated, or this Python came without the text. A damaged copy is an error for
            `auto` too: no silent exchange.
    """
    if name not in ("auto", *get_args(Name)):
        raise UserError(f"unknown data set {name!r}: choose auto, {', '.join(get_args(Name))}")
    if name == "text":
        return Choice(name="text", folder=None, reason=f"text: {describe_reference()}")
    if name == "digits":
        return Choice(name="digits", folder=None, reason="digits, the embedded data, as asked")
    roots = search_roots(data_root)
    folder = find_mnist(roots)
    if folder is None and name == "mnist":
        raise UserError(f"{_what_is_missing(roots)}\n{_HOW_TO_GET}")
    if folder is None:
        reason = f"auto took the embedded digits: {_what_is_missing(roots)}"
        return Choice(name="digits", folder=None, reason=reason)
    for file in MNIST_FILES:
        path = find_file(folder, file)
        assert path is not None
        check_size(path, file)
    how = "as asked, from" if name == "mnist" else "auto found it in"
    return Choice(name="mnist", folder=folder, reason=f"mnist: {how} {folder}")


def search_roots(data_root: Path | None) -> list[Path]:
    """Where MNIST is looked for, in order. A root that was asked for is the only one.

    Raises: UserError when that root does not exist.
    """
    if data_root is not None:
        if not data_root.is_dir():
            raise UserError(f"--data-root {data_root} is not a folder")
        return [data_root]
    variable = os.environ.get("PHALANX_DATA")
    return [*([Path(variable)] if variable else []), cache_folder()]


def fetch_folder(data_root: Path | None) -> Path:
    """Where a download goes: the first place that a run would look into."""
    root = data_root or Path(os.environ.get("PHALANX_DATA") or cache_folder())
    return find_mnist([root]) or root / "mnist"


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/phalanx or ~/.cache/phalanx; a temporary folder for a user with no home."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        return xdg / "phalanx"
    try:
        return Path.home() / ".cache" / "phalanx"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"phalanx-{os.getuid()}"


def digits_file() -> Path:
    """Where the embedded digits are kept once they are made. Other images, another number."""
    return cache_folder() / "digits-1.npy"


def find_mnist(roots: Sequence[Path]) -> Path | None:
    """The first folder that holds all four files."""
    folders = (root / layout for root in roots for layout in _LAYOUTS)
    return next((folder for folder in folders if not _missing(folder)), None)


def _what_is_missing(roots: Sequence[Path]) -> str:
    """Names what an incomplete copy lacks, or the places where there is none at all."""
    for folder in (root / layout for root in roots for layout in _LAYOUTS):
        missing = _missing(folder)
        if len(missing) < len(MNIST_FILES):
            return f"the MNIST in {folder} lacks {', '.join(missing)}"
    return f"there is no MNIST in {' or '.join(map(str, roots))}"


def _missing(folder: Path) -> list[str]:
    return [file.gz_name for file in MNIST_FILES if find_file(folder, file) is None]
