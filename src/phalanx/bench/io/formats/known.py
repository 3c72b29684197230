"""The formats by name, the packages that they need, and the two that need none: packs and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from phalanx.bench.io.formats.hdf5 import Hdf5Store, write_hdf5
from phalanx.bench.io.formats.parquet import ParquetStore, write_parquet
from phalanx.bench.io.formats.store import Indices, Open, Rows, Shape, Write
from phalanx.bench.io.formats.tar import TarStore, write_tars
from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter
from phalanx.errors import UserError
from phalanx.records.io import Format

FIELD = "inputs"


def write_packed(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    field = Field(name=FIELD, dtype="uint8", shape=[shape.sample_bytes])
    shard_bytes = shape.shard_samples * shape.sample_bytes
    with PackWriter(folder, fields=[field], shard_bytes=shard_bytes) as writer:
        for rows in shards:
            writer.add_rows({FIELD: rows})


class PackedStore:
    def __init__(self, folder: Path, shape: Shape) -> None:  # noqa: ARG002
        self._pack = Pack(folder)

    def read(self, indices: Indices) -> Rows:
        return self._pack.read(FIELD, indices)

    def close(self) -> None:
        self._pack.close()


FOLDER_FILES = 1000


def write_files(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:  # noqa: ARG001
    for number, row in enumerate(row for rows in shards for row in rows):
        path = path_of(folder, number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(row.data)


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number // FOLDER_FILES:05d}" / f"{number:08d}.bin"


class FileStore:
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


WRITE: Mapping[Format, Write] = {
    "files": write_files,
    "tar": write_tars,
    "npy": write_packed,
    "hdf5": write_hdf5,
    "parquet": write_parquet,
}
OPEN: Mapping[Format, Open] = {
    "files": FileStore,
    "tar": TarStore,
    "npy": PackedStore,
    "hdf5": Hdf5Store,
    "parquet": ParquetStore,
}
_NEEDS: Mapping[Format, str] = {"hdf5": "h5py", "parquet": "pyarrow"}


def unavailable_reason(format_: Format) -> str | None:
    """Return why the format cannot be measured here; else None."""
    package = _NEEDS.get(format_)
    if package is None or find_spec(package):
        return None
    return f"{package} is not installed: pip install 'phalanx[data]'"
