"""A folder with a folder of images for each class."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Sample
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.origin import Numbers, Wanted, fingerprint_of
from phalanx.errors import UserError
from phalanx.launch.cores import usable_cores

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_FOR_TRAINING = ("train", "training")
_FOR_VALIDATION = ("validation", "valid", "val", "test")


class ImageFolder:
    """FOLDER/CLASS/…/image, or FOLDER/train/CLASS/image beside FOLDER/val/CLASS/image. Classes are
    in the order of the alphabet. Reads with as many threads as there are processors."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        """Opens every image to see its size.

        Raises: UserError when there is none, or one is no image.
        """
        train_folder, validation_folder = _splits(folder)
        train, self.classes = _images(train_folder)
        held_out: list[tuple[Path, str]] = []
        if validation_folder is not None:
            held_out, classes = _images(validation_folder)
            unknown = sorted(set(classes) - set(self.classes))
            if unknown:
                raise UserError(f"{validation_folder / unknown[0]}: no such class for training")
        files = train + held_out
        self._paths = [path for path, _ in files]
        self._targets = np.array([self.classes.index(name) for _, name in files], np.int64)
        self.text = f"images in {folder}"
        self.fingerprint = fingerprint_of(self._paths)
        self.chunks = [range(len(files))]
        self.validation = np.arange(len(train), len(files)) if held_out else None
        self._pool = ThreadPoolExecutor(usable_cores())
        self._form: ImageForm = choose_form(self._pool.map(_peek_file, self._paths), wanted)
        self.fields = [self._form.field, Field(name="targets", dtype="int64", shape=[])]

    def read(self, numbers: Numbers) -> list[Sample]:
        paths = [self._paths[number] for number in numbers.tolist()]
        images = self._pool.map(self._packed, paths)
        targets = self._targets[numbers]
        return [{"inputs": image, "targets": targets[i, ...]} for i, image in enumerate(images)]

    def close(self) -> None:
        self._pool.shutdown()

    def _packed(self, path: Path) -> NDArray[np.uint8] | bytes:
        return self._form.packed(_content(path), str(path))


def has_images(folder: Path) -> bool:
    """Whether it looks like one: some folder in it, or in its `train`, holds an image."""
    root, _ = _splits(folder)
    return any(
        path.suffix.lower() in ENDINGS
        for child in root.iterdir()
        if child.is_dir()
        for path in child.rglob("*")
    )


def _splits(folder: Path) -> tuple[Path, Path | None]:
    training = [folder / name for name in _FOR_TRAINING if (folder / name).is_dir()]
    validation = [folder / name for name in _FOR_VALIDATION if (folder / name).is_dir()]
    if not training:
        return folder, None
    return training[0], validation[0] if validation else None


def _images(folder: Path) -> tuple[list[tuple[Path, str]], list[str]]:
    """Every image with its class, and the classes that have any."""
    found = [
        (path, child.name)
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.name.startswith(".")
        for path in sorted(child.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    ]
    if not found:
        raise UserError(
            f"{folder} has no folders of images: one for each class is wanted, with files that end "
            f"in {', '.join(ENDINGS[:3])} …"
        )
    return found, sorted({name for _, name in found})


def _peek_file(path: Path) -> Peek:
    try:
        with path.open("rb") as file:
            return peek(file, str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
