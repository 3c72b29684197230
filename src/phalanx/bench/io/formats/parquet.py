"""Parquet: a column of bytes per shard, in row groups of about 1 MB, not compressed or encoded.
Reading a sample reads its row group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape

COLUMN = "inputs"
GROUP_BYTES = 2**20
NAME = "shard-{:05d}.parquet"


def write_parquet(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    import pyarrow as pa  # optional dependency
    from pyarrow import parquet as pq

    kind = pa.binary(shape.sample_bytes)
    schema = pa.schema([pa.field(COLUMN, kind, nullable=False)])
    for number, rows in enumerate(shards):
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])
        pq.write_table(
            pa.Table.from_arrays([column], schema=schema),
            folder / NAME.format(number),
            row_group_size=group_samples(shape),
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )


def group_samples(shape: Shape) -> int:
    return max(1, GROUP_BYTES // shape.sample_bytes)


class ParquetStore:
    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder, self._shape, self._group = folder, shape, group_samples(shape)
        self._own = threading.local()  # a file has one position, so each thread opens its own
        self._opened: list[Any] = []

    def _files(self) -> list[Any]:
        from pyarrow import parquet as pq

        if not hasattr(self._own, "files"):
            paths = [self._folder / NAME.format(n) for n in range(self._shape.num_shards)]
            self._own.files = [pq.ParquetFile(path, pre_buffer=False) for path in paths]
            self._opened += self._own.files
        found: list[Any] = self._own.files
        return found

    def read(self, indices: Indices) -> Rows:
        files, size = self._files(), self._shape.sample_bytes
        rows = np.empty((len(indices), size), np.uint8)
        shards, places = np.divmod(indices, self._shape.shard_samples)
        groups, within = np.divmod(places, self._group)
        order = np.lexsort((groups, shards))  # each row group is read once for the batch
        seen, values = (-1, -1), np.empty((0, size), np.uint8)
        for row in order.tolist():
            key = int(shards[row]), int(groups[row])
            if key != seen:
                table = files[key[0]].read_row_group(key[1], [COLUMN], use_threads=False)
                column = table.column(COLUMN).combine_chunks()
                flat = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * size :]
                seen, values = key, flat[: len(column) * size].reshape(-1, size)
            rows[row] = values[within[row]]
        return rows

    def close(self) -> None:
        for file in self._opened:
            file.close()
