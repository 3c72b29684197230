"""The shards of `phalanx data pack`: tar files, or memory maps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.bench.io.formats.store import Indices, Rows, Shape
from phalanx.data.packed.index import Field, Layout
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter

FIELD = "inputs"


def write_packed(layout: Layout, folder: Path, shape: Shape, blocks: Iterator[Rows]) -> None:
    field = Field(name=FIELD, dtype="uint8", shape=[shape.sample_bytes])
    shard_bytes = shape.shard_samples * shape.sample_bytes
    with PackWriter(folder, layout=layout, fields=[field], shard_bytes=shard_bytes) as writer:
        for block in blocks:
            writer.add_rows({FIELD: block})


class PackedStore:
    is_shareable = True

    def __init__(self, folder: Path, shape: Shape) -> None:  # noqa: ARG002
        self._pack = Pack(folder)

    def read(self, indices: Indices) -> Rows:
        return self._pack.read(FIELD, indices)

    def close(self) -> None:
        self._pack.close()
