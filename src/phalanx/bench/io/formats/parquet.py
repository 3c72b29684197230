"""Parquet: a column of bytes per shard, in row groups of about 1 MB, not compressed or encoded.
Reading a sample reads its row group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.bench.io.formats.store import Indices, Rows, Shape, shards_of

COLUMN = "inputs"
GROUP_BYTES = 2**20


def write_parquet(folder: Path, shape: Shape, blocks: Iterator[Rows]) -> None:
    import pyarrow as pa  # optional dependency
    from pyarrow import parquet as pq

    kind = pa.binary(shape.sample_bytes)
    schema = pa.schema([pa.field(COLUMN, kind, nullable=False)])
    group = group_samples(shape)
    for number, shard in enumerate(shards_of(shape, blocks)):
        path = folder / _name(number)
        with pq.ParquetWriter(
            path, schema, compression="none", use_dictionary=False, write_statistics=False
        ) as writer:
            for rows in _groups(shard, group):
                column = pa.FixedSizeBinaryArray.from_buffers(
                    kind, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))]
                )
                writer.write_table(pa.Table.from_arrays([column], schema=schema), group)


def group_samples(shape: Shape) -> int:
    return max(1, GROUP_BYTES // shape.sample_bytes)


def _groups(shard: Iterator[Rows], group: int) -> Iterator[Rows]:
    """Yield the rows of a shard in full groups; the last may be smaller."""
    left: Rows | None = None
    for block in shard:
        rows = block if left is None else np.concatenate([left, block])
        whole = len(rows) // group * group
        for first in range(0, whole, group):
            yield rows[first : first + group]
        left = rows[whole:] if whole < len(rows) else None
    if left is not None:
        yield left


class ParquetStore:
    is_shareable = False  # a file has one position

    def __init__(self, folder: Path, shape: Shape) -> None:
        from pyarrow import parquet as pq

        self._shape, self._group = shape, group_samples(shape)
        self._files: list[Any] = [
            pq.ParquetFile(folder / _name(number), pre_buffer=False)
            for number in range(-(-shape.num_samples // shape.shard_samples))
        ]

    def read(self, indices: Indices) -> Rows:
        size = self._shape.sample_bytes
        rows = np.empty((len(indices), size), np.uint8)
        shards, places = np.divmod(indices, self._shape.shard_samples)
        groups, within = np.divmod(places, self._group)
        order = np.lexsort((groups, shards))  # each row group is read once for the batch
        seen, values = (-1, -1), np.empty((0, size), np.uint8)
        for row in order.tolist():
            key = int(shards[row]), int(groups[row])
            if key != seen:
                seen, values = key, self._row_group(*key)
            rows[row] = values[within[row]]
        return rows

    def _row_group(self, shard: int, group: int) -> Rows:
        table = self._files[shard].read_row_group(group, [COLUMN], use_threads=False)
        chunks = [
            np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * self._shape.sample_bytes :][
                : len(chunk) * self._shape.sample_bytes
            ]
            for chunk in table.column(COLUMN).chunks
        ]
        flat = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        return flat.reshape(-1, self._shape.sample_bytes)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _name(number: int) -> str:
    return f"shard-{number:05d}.parquet"
