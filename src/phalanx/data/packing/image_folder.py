"""A folder with a folder of images for each class."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phalanx.data.packing.table import (
    INPUTS,
    TARGETS,
    ArrayTable,
    CountedItems,
    fingerprint_of,
)
from phalanx.errors import UserError
from phalanx.records.regular_file import readable

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
)
_FOR_TRAINING = ("train", "training")
_FOR_VALIDATION = ("validation", "valid", "val", "test")


def read_image_folder(folder: Path) -> ArrayTable:
    """FOLDER/CLASS/…/image, or FOLDER/train/CLASS/image beside FOLDER/val/CLASS/image. Linked files
    and folders are followed. Classes are in the order of the alphabet.

    Raises: UserError when there are no images, a link leads nowhere or in a circle, or validation
            has a class that training has not.
    """
    skipped = CountedItems()
    train_folder, validation_folder = _splits(folder)
    train, classes = _images(train_folder, skipped)
    held_out: list[tuple[Path, str]] = []
    if validation_folder is not None:
        held_out, held_out_classes = _images(validation_folder, skipped)
        unknown = sorted(set(held_out_classes) - set(classes))
        if unknown:
            raise UserError(f"{validation_folder / unknown[0]}: no such class for training")
    if train_folder != folder:
        beside = "files in folders beside those for training and validation"
        for path in _visible(folder, skipped):
            if path not in (train_folder, validation_folder):
                for file in _walk(path, skipped) if path.is_dir() else [path]:
                    skipped.add(beside, file)
    elif set(classes) <= set(_FOR_VALIDATION):
        raise UserError(
            f"{folder} has {', '.join(classes)} but no train: use a folder with a folder for each "
            "class"
        )
    paths, names = zip(*train, *held_out, strict=True)
    table = ArrayTable(
        f"images in {folder}",
        {INPUTS: [*paths], TARGETS: np.array([classes.index(name) for name in names])},
        fingerprint=fingerprint_of(paths),
        classes=classes,
        num_train=len(train) if held_out else None,
    )
    table.skipped = skipped
    return table


def has_images(folder: Path) -> bool:
    """Return whether some folder in it, or in its `train`, holds an image."""
    root, _ = _splits(folder)
    return any(_is_image(path) for path in root.glob("*/**/*"))


def _splits(folder: Path) -> tuple[Path, Path | None]:
    training = [folder / name for name in _FOR_TRAINING if (folder / name).is_dir()]
    validation = [folder / name for name in _FOR_VALIDATION if (folder / name).is_dir()]
    if not training:
        return folder, None
    return training[0], validation[0] if validation else None


def _images(folder: Path, skipped: CountedItems) -> tuple[list[tuple[Path, str]], list[str]]:
    """Every image with its class, and the classes that have any."""
    found: list[tuple[Path, str]] = []
    foreign = f"files that end in none of {', '.join(ENDINGS[:3])} …"
    for child in _visible(folder, skipped):
        if not child.is_dir():
            skipped.add("files in no class's folder" if _is_image(child) else foreign, child)
            continue
        count = len(found)
        for path in _walk(child, skipped):
            if _is_image(path):
                found.append((path, child.name))
            else:
                skipped.add(foreign, path)
        if len(found) == count and child.name not in _FOR_TRAINING + _FOR_VALIDATION:
            skipped.add("folders without images, which are not classes", child)
    if not found:
        raise UserError(
            f"{folder} has no folders of images: it needs one for each class, with files that end "
            f"in {', '.join(ENDINGS[:3])} …"
        )
    return found, sorted({name for _, name in found})


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def _visible(folder: Path, skipped: CountedItems) -> Iterator[Path]:
    """Files and folders of a folder, by name.

    Raises: UserError for a link to nothing, or an image that is a FIFO or a device.
    """
    with readable(folder):
        paths = sorted(folder.iterdir())
    for path in paths:
        if path.name.startswith("."):
            skipped.add("hidden files or folders", path)
            continue
        try:
            mode = path.stat().st_mode
        except OSError as error:
            what = "is a link to nothing" if path.is_symlink() else "cannot be read"
            raise UserError(
                f"{path} {what}: {error.strerror}\nmend it, or remove it from the folder"
            ) from error
        if _is_image(path) and not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise UserError(f"{path} is not a regular file: remove it from the folder")
        yield path


def _walk(
    folder: Path, skipped: CountedItems, holders: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Path]:
    """Files below a folder, by name. holders: the folders that it lies in, by device and number."""
    state = folder.stat()
    here = (state.st_dev, state.st_ino)
    if here in holders:
        raise UserError(f"{folder} links to a folder that holds it: remove the link")
    for path in _visible(folder, skipped):
        if path.is_dir():
            yield from _walk(path, skipped, holders | {here})
        else:
            yield path
