"""What data there is on this machine, and whether it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phalanx.data.cache import read
from phalanx.data.catalog import (
    NUM_TRAIN_SAMPLES,
    NUM_VALIDATION_SAMPLES,
    Name,
    digits_file,
    find_mnist,
    search_roots,
)
from phalanx.data.published import MNIST_FILES, is_verified


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A data set, where it is or would be, and in which state."""

    name: Name
    state: str
    where: str
    num_train_samples: int = NUM_TRAIN_SAMPLES
    num_validation_samples: int = NUM_VALIDATION_SAMPLES


def inventory(data_root: Path | None = None) -> list[Holding]:
    """Every data set, its files read and their checksums compared; takes about half a second.

    Raises: UserError when `data_root` does not exist.
    """
    return [_digits(), _mnist(data_root)]


def _digits() -> Holding:
    path = digits_file()
    if not path.exists():
        return Holding(name="digits", state="made when first used", where=str(path))
    state = "verified" if read(path) is not None else "damaged, made again when used"
    return Holding(name="digits", state=state, where=str(path))


def _mnist(data_root: Path | None) -> Holding:
    roots = search_roots(data_root)
    folder = find_mnist(roots)
    if folder is None:
        return Holding(name="mnist", state="not there", where=" or ".join(map(str, roots)))
    damaged = [file.gz_name for file in MNIST_FILES if not is_verified(folder, file)]
    state = f"damaged: {', '.join(damaged)}" if damaged else "verified"
    return Holding(name="mnist", state=state, where=str(folder))
