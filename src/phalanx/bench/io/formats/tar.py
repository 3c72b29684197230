"""Samples in tar shards, as WebDataset keeps them, read at random by their offsets."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape
from phalanx.data.packing.table import CountedItems
from phalanx.data.packing.tar_files import read_samples
from phalanx.errors import UserError


def write_tars(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    for shard, rows in enumerate(shards):
        with tarfile.open(folder / f"shard-{shard:05d}.tar", "w") as archive:
            for number, row in enumerate(rows, shard * shape.shard_samples):
                member = tarfile.TarInfo(f"{number:09d}.bin")
                member.size = len(row)
                archive.addfile(member, io.BytesIO(row.data))


class TarStore:
    def __init__(self, folder: Path, shape: Shape) -> None:
        """Reads all headers."""
        self._sample_bytes = shape.sample_bytes
        paths = sorted(folder.glob("*.tar"))
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        self._members = [
            (self._files[number], sample["bin"].offset)
            for number, path in enumerate(paths)
            for sample in read_samples(number, path, CountedItems())
        ]

    def read(self, indices: Indices) -> Rows:
        rows = np.empty((len(indices), self._sample_bytes), np.uint8)
        for row, number in zip(rows, indices.tolist(), strict=True):
            file, offset = self._members[number]
            if os.preadv(file, [row.data], offset) != self._sample_bytes:
                raise UserError(f"a tar shard ends in the middle of sample {number}")
        return rows

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
