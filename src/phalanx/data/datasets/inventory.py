"""Inventory of the data sets on this machine, their files verified."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.data.datasets.array_cache import read
from phalanx.data.datasets.arrays import num_windows, read_files
from phalanx.data.datasets.catalog import (
    FILE_SETS,
    NUM_TRAIN_SAMPLES,
    NUM_VALIDATION_SAMPLES,
    Name,
    digits_file,
)
from phalanx.data.datasets.language_reference import fingerprint, has_reference, read_reference
from phalanx.data.published.file_sets import (
    PublishedFile,
    find_file,
    find_folder,
    is_verified,
    read_verified,
    search_roots,
)
from phalanx.errors import UserError


@dataclass(frozen=True, kw_only=True)
class InventoryEntry:
    """A data set, where it is or would be, and in which state."""

    name: Name
    state: str
    where: str
    num_train_samples: int = NUM_TRAIN_SAMPLES
    num_validation_samples: int = NUM_VALIDATION_SAMPLES


def inventory(data_root: Path | None = None) -> list[InventoryEntry]:
    """Every data set, its files read and their checksums compared; takes about half a second.

    Raises: UserError when `data_root` does not exist.
    """
    roots = search_roots(data_root)
    return [_digits(), *(_files(name, roots) for name in FILE_SETS), _text()]


def _digits() -> InventoryEntry:
    path = digits_file()
    try:
        state = "verified" if path.exists() else "made when first used"
    except OSError as error:
        state = f"recreated in each run: {error.strerror}"
    if state == "verified" and read(path) is None:
        state = "damaged; recreated when used"
    return InventoryEntry(name="digits", state=state, where=str(path))


def _files(name: Name, roots: Sequence[Path]) -> InventoryEntry:
    folder = find_folder(roots, FILE_SETS[name])
    state, where = "not there", " or ".join(map(str, roots))
    if folder is not None:
        state, where = _state(name, folder), str(folder)
    train = 50_000 if name == "cifar10" else NUM_TRAIN_SAMPLES
    return InventoryEntry(name=name, state=state, where=where, num_train_samples=train)


def _state(name: Name, folder: Path) -> str:
    files = FILE_SETS[name].files
    if all(is_verified(folder, file) for file in files):
        return "verified"
    damaged = [file.usual_name for file in files if not _succeeds(_read, folder, file)]
    if damaged:
        return f"damaged: {', '.join(damaged)}"
    return "sizes and labels right" if _succeeds(read_files, name, folder) else "damaged: labels"


def _read(folder: Path, file: PublishedFile) -> None:
    path = find_file(folder, file)
    assert path is not None, "the folder holds all of them"
    read_verified(path, file)


def _succeeds(read: Callable[..., object], *arguments: object) -> bool:
    try:
        read(*arguments)
    except UserError:
        return False
    return True


def _text() -> InventoryEntry:
    if not has_reference():
        return InventoryEntry(
            name="text",
            state="not there",
            where="this Python came without pydoc_data",
            num_train_samples=0,
            num_validation_samples=0,
        )
    reference = read_reference()
    return InventoryEntry(
        name="text",
        state=f"SHA-256 {fingerprint(reference)[:16]}…",
        where=f"the language reference of Python {platform.python_version()}",
        num_train_samples=num_windows(len(reference.training)),
        num_validation_samples=num_windows(len(reference.validation)),
    )
