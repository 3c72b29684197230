"""HDF5: a contiguous data set of rows per shard, read row by row. The library has one lock for the
process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape

DATA_SET = "inputs"
NAME = "shard-{:05d}.h5"


def write_hdf5(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:  # noqa: ARG001
    import h5py  # optional dependency

    for number, rows in enumerate(shards):
        with h5py.File(folder / NAME.format(number), "w") as file:
            file.create_dataset(DATA_SET, data=rows)


class Hdf5Store:
    def __init__(self, folder: Path, shape: Shape) -> None:
        import h5py

        self._shape = shape
        self._files: list[Any] = [
            h5py.File(folder / NAME.format(number), "r") for number in range(shape.num_shards)
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
