"""Ways to store samples of one size, each written a shard at a time and read at random."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.writer import PackWriter
from phalanx.data.packing.table import CountedItems
from phalanx.data.packing.tar_files import read_samples
from phalanx.errors import UserError
from phalanx.records.io import Format

Indices = NDArray[np.int64]
Rows = NDArray[np.uint8]

FIELD = "inputs"
"""Name of the field, data set or column of the samples."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Number and size of the samples, and samples per shard."""

    num_samples: int
    sample_bytes: int
    shard_samples: int

    @property
    def num_shards(self) -> int:
        return -(-self.num_samples // self.shard_samples)

    def shards(self, folder: Path, ending: str) -> list[Path]:
        """Return the file of each shard."""
        return [folder / f"shard-{number:05d}.{ending}" for number in range(self.num_shards)]


class Store:
    """Stored samples, read by any number of threads."""

    def __init__(self, shape: Shape) -> None:
        self._shape, self._opened = shape, ExitStack()

    def read(self, indices: Indices) -> Rows:
        """Return (n, sample_bytes); row i is sample indices[i]."""
        rows = np.empty((len(indices), self._shape.sample_bytes), np.uint8)
        for row, number in zip(rows, indices.tolist(), strict=True):
            self.read_sample(number, row)
        return rows

    def read_sample(self, number: int, into: Rows) -> None:
        """Read a sample, where `read` is none of the store's own. into: (sample_bytes,)."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all files."""
        self._opened.close()


FOLDER_FILES = 1000


def write_files(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:  # noqa: ARG001
    for number, row in enumerate(row for rows in shards for row in rows):
        path = path_of(folder, number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(row.data)


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number // FOLDER_FILES:05d}" / f"{number:08d}.bin"


class FileStore(Store):
    """A file for each sample."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(shape)
        self._folder = folder

    def read_sample(self, number: int, into: Rows) -> None:
        path = path_of(self._folder, number)
        with path.open("rb", buffering=0) as file:
            if file.readinto(into.data) != len(into):
                raise UserError(f"{path} is not of {len(into):,} bytes")


def write_tars(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    for shard, (path, rows) in enumerate(zip(shape.shards(folder, "tar"), shards, strict=True)):
        with tarfile.open(path, "w") as archive:
            for number, row in enumerate(rows, shard * shape.shard_samples):
                member = tarfile.TarInfo(f"{number:09d}.bin")
                member.size = len(row)
                archive.addfile(member, io.BytesIO(row.data))


class TarStore(Store):
    """Tar shards, as WebDataset keeps them, read at random by the offsets of their members."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        """Reads all headers."""
        super().__init__(shape)
        self._members = list[tuple[int, int]]()
        for number, path in enumerate(shape.shards(folder, "tar")):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._opened.callback(os.close, file)
            samples = read_samples(number, path, CountedItems())
            self._members += [(file, sample["bin"].offset) for sample in samples]

    def read_sample(self, number: int, into: Rows) -> None:
        file, offset = self._members[number]
        if os.preadv(file, [into.data], offset) != len(into):
            raise UserError(f"a tar shard ends in the middle of sample {number}")


def write_packed(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    field = Field(name=FIELD, dtype="uint8", shape=[shape.sample_bytes])
    shard_bytes = shape.shard_samples * shape.sample_bytes
    with PackWriter(folder, fields=[field], shard_bytes=shard_bytes) as writer:
        for rows in shards:
            writer.add_rows({FIELD: rows})


class PackedStore(Store):
    """Shards of `phalanx data pack`."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(shape)
        self._pack = Pack(folder)
        self._opened.callback(self._pack.close)

    def read(self, indices: Indices) -> Rows:
        return self._pack.read(FIELD, indices)


def write_hdf5(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    import h5py  # optional dependency

    for path, rows in zip(shape.shards(folder, "h5"), shards, strict=True):
        with h5py.File(path, "w") as file:
            file.create_dataset(FIELD, data=rows)


class Hdf5Store(Store):
    """A contiguous data set of rows per shard, read row by row: the library has one lock."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        import h5py

        super().__init__(shape)
        paths = shape.shards(folder, "h5")
        files = [self._opened.enter_context(h5py.File(path, "r")) for path in paths]
        self._data: list[Any] = [file[FIELD] for file in files]

    def read_sample(self, number: int, into: Rows) -> None:
        shard, row = divmod(number, self._shape.shard_samples)
        into[:] = self._data[shard][row]  # h5py has a fast path for a single index


GROUP_BYTES = 2**20


def write_parquet(folder: Path, shape: Shape, shards: Iterator[Rows]) -> None:
    import pyarrow as pa  # optional dependency
    from pyarrow import parquet as pq

    kind = pa.binary(shape.sample_bytes)
    schema = pa.schema([pa.field(FIELD, kind, nullable=False)])
    for path, rows in zip(shape.shards(folder, "parquet"), shards, strict=True):
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])
        pq.write_table(
            pa.Table.from_arrays([column], schema=schema),
            path,
            row_group_size=group_samples(shape),
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )


def group_samples(shape: Shape) -> int:
    return max(1, GROUP_BYTES // shape.sample_bytes)


class ParquetStore(Store):
    """A column of bytes per shard, in row groups of about 1 MB, not compressed or encoded. Reading
    a sample reads its row group."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(shape)
        self._paths, self._group = shape.shards(folder, "parquet"), group_samples(shape)
        self._own = threading.local()  # a file has one position, so each thread opens its own

    def _files(self) -> list[Any]:
        from pyarrow import parquet as pq

        if not hasattr(self._own, "files"):
            files = [pq.ParquetFile(path, pre_buffer=False) for path in self._paths]
            self._own.files = [self._opened.enter_context(file) for file in files]
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
                table = files[key[0]].read_row_group(key[1], [FIELD], use_threads=False)
                column = table.column(FIELD).combine_chunks()
                flat = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * size :]
                seen, values = key, flat[: len(column) * size].reshape(-1, size)
            rows[row] = values[within[row]]
        return rows


class StorageFormat(NamedTuple):
    """Writer and reader of a format, and the package that they need."""

    write: Callable[[Path, Shape, Iterator[Rows]], None]
    """Write all samples, a shard of (n, sample_bytes) at a time, into an empty folder."""
    open: Callable[[Path, Shape], Store]
    needs: str | None = None


STORAGE: Mapping[Format, StorageFormat] = {
    "files": StorageFormat(write_files, FileStore),
    "tar": StorageFormat(write_tars, TarStore),
    "npy": StorageFormat(write_packed, PackedStore),
    "hdf5": StorageFormat(write_hdf5, Hdf5Store, "h5py"),
    "parquet": StorageFormat(write_parquet, ParquetStore, "pyarrow"),
}


def unavailable_reason(format_: Format) -> str | None:
    """Return why the format cannot be measured here; else None."""
    package = STORAGE[format_].needs
    if package is None or find_spec(package):
        return None
    return f"{package} is not installed: pip install 'phalanx[data]'"
