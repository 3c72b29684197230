"""One file per sample, a thousand per folder, as images are often stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape
from phalanx.errors import UserError

FOLDER_FILES = 1000


def write_files(folder: Path, shape: Shape, blocks: Iterator[Rows]) -> None:  # noqa: ARG001
    number = 0
    for block in blocks:
        for row in block:
            path = path_of(folder, number)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(row.data)
            number += 1


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number // FOLDER_FILES:05d}" / f"{number:08d}.bin"


class FileStore:
    is_shareable = True

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder, self._sample_bytes = folder, shape.sample_bytes

    def read(self, indices: Indices) -> Rows:
        rows = np.empty((len(indices), self._sample_bytes), np.uint8)
        for row, number in zip(rows, indices.tolist(), strict=True):
            path = path_of(self._folder, number)
            with path.open("rb", buffering=0) as file:
                if file.readinto(row.data) != self._sample_bytes:
                    raise UserError(f"{path} is not of {self._sample_bytes:,} bytes")
        return rows

    def close(self) -> None:
        """Do nothing: no file stays open."""
