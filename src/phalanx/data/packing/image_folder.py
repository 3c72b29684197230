"""A folder with a folder of images for each class."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Sample
from phalanx.data.packing.image_files import find_images
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.origin import Numbers, OriginOptions, fingerprint_of
from phalanx.launch.cores import usable_cores
from phalanx.records.regular_file import readable


class ImageFolder:
    """FOLDER/CLASS/…/image, or FOLDER/train/CLASS/image beside FOLDER/val/CLASS/image. Classes are
    in the order of the alphabet. Reads with as many threads as there are processors."""

    def __init__(self, folder: Path, options: OriginOptions) -> None:
        """Opens every image to see its size.

        Raises: UserError when there is none, or one is no image.
        """
        train, held_out, self.classes, self.skipped = find_images(folder)
        files = train + held_out
        self._paths = [path for path, _ in files]
        self._targets = np.array([self.classes.index(name) for _, name in files], np.int64)
        self.text = f"images in {folder}"
        self.fingerprint = fingerprint_of(self._paths)
        self.chunks = [range(len(files))]
        self.validation = np.arange(len(train), len(files)) if held_out else None
        self._pool = ThreadPoolExecutor(usable_cores())
        self._form: ImageForm = choose_form(self._pool.map(_peek_file, self._paths), options)
        self.notes = self._form.notes
        self.fields = [self._form.field, Field(name="targets", dtype="int64", shape=[])]

    def read(self, numbers: Numbers) -> list[Sample]:
        paths = [self._paths[number] for number in numbers.tolist()]
        images = self._pool.map(self._packed, paths)
        targets = self._targets[numbers]
        return [{"inputs": image, "targets": targets[i, ...]} for i, image in enumerate(images)]

    def close(self) -> None:
        self._pool.shutdown()

    def _packed(self, path: Path) -> NDArray[np.uint8] | bytes:
        with readable(path):
            content = path.read_bytes()
        return self._form.packed(content, str(path))


def _peek_file(path: Path) -> Peek:
    with readable(path), path.open("rb") as file:
        return peek(file, str(path))
