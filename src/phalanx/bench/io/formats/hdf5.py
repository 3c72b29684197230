"""HDF5: a contiguous data set of rows per shard, read row by row. The library has one lock for the
process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape, shards_of

DATA_SET = "inputs"


def write_hdf5(folder: Path, shape: Shape, blocks: Iterator[Rows]) -> None:
    import h5py  # optional dependency

    done = 0
    for number, shard in enumerate(shards_of(shape, blocks)):
        rows = min(shape.shard_samples, shape.num_samples - done)
        with h5py.File(folder / _name(number), "w") as file:
            data = file.create_dataset(DATA_SET, (rows, shape.sample_bytes), "uint8")
            at = 0
            for block in shard:
                data[at : at + len(block)] = block
                at += len(block)
        done += rows


class Hdf5Store:
    is_shareable = True  # by its library's own lock

    def __init__(self, folder: Path, shape: Shape) -> None:
        import h5py

        self._shape = shape
        self._files: list[Any] = [
            h5py.File(folder / _name(number), "r")
            for number in range(-(-shape.num_samples // shape.shard_samples))
        ]
        self._data = [file[DATA_SET] for file in self._files]

    def read(self, indices: Indices) -> Rows:
        rows = np.empty((len(indices), self._shape.sample_bytes), np.uint8)
        for row, index in enumerate(indices.tolist()):
            shard, row_in_shard = divmod(index, self._shape.shard_samples)
            rows[row] = self._data[shard][row_in_shard]  # h5py has a fast path for a single index
        return rows

    def close(self) -> None:
        for file in self._files:
            file.close()


def _name(number: int) -> str:
    return f"shard-{number:05d}.h5"
