"""Writer of one shard: its samples in order, then the table of their checksums."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import crcs_of_rows
from phalanx.data.packed.index import (
    Field,
    File,
    Shard,
    element,
    file_names,
    npy_header,
    sample_bytes,
    table_dtype,
)

_CHUNK_BYTES = 1 << 20


class HashedFile:
    """Sequential writer; holds one descriptor until `finish` or `abandon`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b", buffering=_CHUNK_BYTES)
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, content: bytes | memoryview) -> None:
        """content: of bytes."""
        self._file.write(content)
        self._hash.update(content)
        self.size_bytes += len(content)

    def replace_start(self, content: bytes) -> None:
        """Overwrite the first bytes, and compute the checksum of the whole file again."""
        self._file.seek(0)
        self._file.write(content)
        self._file.seek(0)
        self._hash = hashlib.sha256()
        while chunk := self._file.read(_CHUNK_BYTES):
            self._hash.update(chunk)

    def finish(self) -> File:
        """Flush and fsync the file; return its name, size and SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return File(name=self._path.name, bytes=self.size_bytes, sha256=self._hash.hexdigest())

    def abandon(self) -> None:
        with suppress(OSError):  # what is in the buffer may not fit on the disk
            self._file.close()
        self._path.unlink(missing_ok=True)


Part = NDArray[Any] | bytes
"""One field of a sample: an array of its dtype and shape, or the encoded bytes."""

Rows = Mapping[str, NDArray[Any] | Sequence[Part]]
"""Samples by field: (n, …) of its dtype, or where they differ in size a list of n."""


_MAX_SAMPLES = 10**9
"""Of a shard whose samples differ in size: headers have room for such a number."""


class ShardWriter:
    """Writer of one shard, with a file per field; the caller ensures that samples match the fields.

    It is full at about `shard_bytes`, and has one sample at least.
    """

    def __init__(
        self, folder: Path, fields: Sequence[Field], *, number: int, shard_bytes: int
    ) -> None:
        """number: of the shard in the pack."""
        self.num_samples = 0
        self._fields, self._shard_bytes = fields, shard_bytes
        self._sizes = [sample_bytes(field) for field in fields]
        self._row_bytes = sum(size or 0 for size in self._sizes)
        self._capacity = _MAX_SAMPLES
        if None not in self._sizes:
            self._capacity = max(1, shard_bytes // max(1, self._row_bytes))
        self._table_path, *paths = (folder / name for name in file_names(fields, number))
        self._tables: list[NDArray[Any]] = []
        self._files: list[HashedFile] = []
        for path, field in zip(paths, fields, strict=True):
            self._files.append(HashedFile(path))
            self._files[-1].write(self._header(field, self._capacity))

    def add_rows(self, rows: Rows) -> int:
        """Return how many leading rows were written; the rest belongs into the next shard. The
        first row of a shard always fits."""
        contents = {
            field.name: [_encoded(field, part) for part in rows[field.name]]
            for field, size in zip(self._fields, self._sizes, strict=True)
            if size is None
        }
        taken = self._num_fitting(contents, len(next(iter(rows.values()))))
        table = np.empty(taken, table_dtype(self._fields))
        for field, file in zip(self._fields, self._files, strict=True):
            name, own = field.name, contents.get(field.name)
            if own is None:
                part = np.ascontiguousarray(rows[name][:taken], element(field))
                file.write(part.tobytes())
                table[f"{name}.crc"] = crcs_of_rows(part)
            else:
                table[f"{name}.crc"] = [zlib.crc32(content) for content in own[:taken]]
                table[f"{name}.end"] = file.size_bytes + np.cumsum([*map(len, own[:taken])])
                file.write(b"".join(own[:taken]))
        self._tables.append(table)
        self.num_samples += taken
        return taken

    def _num_fitting(self, contents: Mapping[str, Sequence[bytes]], num_rows: int) -> int:
        """Return how many of the rows fit into this shard."""
        if not contents:
            return min(self._capacity - self.num_samples, num_rows)
        sizes = np.full(num_rows, self._row_bytes)
        for own in contents.values():
            sizes += [*map(len, own)]
        ends = np.cumsum(sizes) + sum(file.size_bytes for file in self._files)
        fitting = int(np.searchsorted(ends, self._shard_bytes, side="right"))
        return max(fitting, int(self.num_samples == 0))

    def finish(self) -> Shard:
        """Write the table and fsync all files."""
        if self.num_samples < self._capacity:
            for field, file in zip(self._fields, self._files, strict=True):
                if sample_bytes(field) is not None:
                    file.replace_start(self._header(field, self.num_samples))
        data = [file.finish() for file in self._files]
        table = _write_table(self._table_path, np.concatenate(self._tables))
        return Shard(num_samples=self.num_samples, files=[table, *data])

    def abandon(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.abandon()
        self._table_path.unlink(missing_ok=True)

    def _header(self, field: Field, num_samples: int) -> bytes:
        """Return a header of the same length whatever the number of samples."""
        if sample_bytes(field) is None:
            return b""
        dtype, shape = element(field), field.shape or []
        num_bytes = len(npy_header(dtype, [self._capacity, *shape]))
        return npy_header(dtype, [num_samples, *shape], num_bytes=num_bytes)


def _encoded(field: Field, part: Part) -> bytes:
    """Return the bytes of a sample in its file, which others differ from in size."""
    if isinstance(part, bytes):
        return part
    array = np.ascontiguousarray(part, element(field)).reshape(np.shape(part))
    return npy_header(array.dtype, array.shape) + array.tobytes()


def _write_table(path: Path, table: NDArray[Any]) -> File:
    file = HashedFile(path)
    try:
        file.write(npy_header(table.dtype, table.shape))
        file.write(table.tobytes())
        return file.finish()
    except OSError:
        file.abandon()
        raise
