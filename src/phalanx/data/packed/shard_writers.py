"""Writer of one shard: its samples in order, then the table of their checksums."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import crcs_of_rows
from phalanx.data.packed.index import (
    Field,
    File,
    Shard,
    element,
    file_names,
    sample_bytes,
    table_dtype,
)

_CHUNK_BYTES = 1 << 20


Part = NDArray[Any] | bytes
"""One field of a sample: an array of its dtype and shape, or the encoded bytes."""

Rows = Mapping[str, NDArray[Any] | Sequence[Part]]
"""Samples by field: (n, …) of its dtype, or where they differ in size a list of n."""


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
        self._capacity = max(1, shard_bytes // max(1, self._row_bytes))
        """Samples in a full shard, where all have one size."""
        self._table_path, *paths = (folder / name for name in file_names(fields, number))
        self._tables: list[NDArray[Any]] = []
        self._files: list[IO[bytes]] = []
        for path, field in zip(paths, fields, strict=True):
            self._files.append(path.open("w+b", buffering=_CHUNK_BYTES))
            self._files[-1].write(_header(field, 0))

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
                table[f"{name}.end"] = file.tell() + np.cumsum([*map(len, own[:taken])])
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
        ends = np.cumsum(sizes) + sum(file.tell() for file in self._files)
        fitting = int(np.searchsorted(ends, self._shard_bytes, side="right"))
        return max(fitting, int(self.num_samples == 0))

    def finish(self) -> Shard:
        """Write the table and fsync all files."""
        for field, file in zip(self._fields, self._files, strict=True):
            file.seek(0)
            file.write(_header(field, self.num_samples))
            file.seek(0, os.SEEK_END)
        self._files.insert(0, self._table_path.open("w+b"))
        np.save(self._files[0], np.concatenate(self._tables), allow_pickle=False)
        return Shard(num_samples=self.num_samples, files=[*map(_finished, self._files)])

    def abandon(self) -> None:
        """Remove the files."""
        for file in self._files:
            with suppress(OSError):  # buffered bytes may not fit on the disk
                file.close()
            Path(file.name).unlink(missing_ok=True)


def _encoded(field: Field, part: Part) -> bytes:
    """Return the bytes of a sample in its file, which others differ from in size."""
    if isinstance(part, bytes):
        return part
    array = np.ascontiguousarray(part, element(field)).reshape(np.shape(part))
    return _npy_header(array.dtype, array.shape) + array.tobytes()


def _header(field: Field, num_samples: int) -> bytes:
    """Return the header of a field's file, of the same length whatever the number of samples:
    NumPy leaves room for it to grow."""
    if sample_bytes(field) is None:
        return b""
    return _npy_header(element(field), (num_samples, *(field.shape or ())))


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    facts = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, facts)
    return file.getvalue()


def _finished(file: IO[bytes]) -> File:
    """Bring a file to the disk and close it; return its name, size and SHA-256."""
    file.flush()
    os.fsync(file.fileno())
    num_bytes = file.tell()
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.close()
    return File(name=Path(file.name).name, bytes=num_bytes, sha256=digest)
