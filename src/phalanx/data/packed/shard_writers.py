"""Writers of one shard: its samples in order, then the table of their checksums."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import crcs_of_rows
from phalanx.data.packed.index import (
    ENDINGS,
    Field,
    File,
    Layout,
    Shard,
    element,
    file_names,
    npy_header,
    sample_bytes,
)
from phalanx.errors import UserError

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
"""Of an archive."""

MAX_MEMBER_BYTES = 8**11 - 1
_MAX_NAME_BYTES = 100

# mode, owner and group; the time is 0, so that the same samples make the same bytes.
_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK_BYTES - 156, b"\0")
_SUM_OF_REST = sum(_BEFORE_SIZE + _TIME + _AFTER_CHECKSUM) + 8 * ord(" ")


def member_header(name: str, size_bytes: int) -> bytes:
    """(512,) of a regular file.

    Raises: UserError when it is larger than the format can say, 8 GiB.
    """
    if size_bytes > MAX_MEMBER_BYTES:
        raise UserError(f"{name} has {size_bytes} bytes; a tar holds members below 8 GiB")
    encoded, size = name.encode(), b"%011o\0" % size_bytes
    assert len(encoded) <= _MAX_NAME_BYTES, "names are ours, and short"
    checksum = b"%06o\0 " % (_SUM_OF_REST + sum(encoded) + sum(size))
    return encoded.ljust(100, b"\0") + _BEFORE_SIZE + size + _TIME + checksum + _AFTER_CHECKSUM


def padded(size_bytes: int) -> int:
    """Bytes that a member takes: whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


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


Sample = Mapping[str, NDArray[Any] | bytes]
"""By field: an array of its dtype and shape, or the encoded bytes."""

Rows = Mapping[str, NDArray[Any]]
"""By field: (n, …), of its dtype."""


class ShardWriter(Protocol):
    """Writer of one shard; the caller ensures that samples match the fields."""

    num_samples: int

    def add(self, sample: Sample) -> bool:
        """Write a sample; return False if the shard is full. The first sample always fits."""

    def add_rows(self, rows: Rows) -> int:
        """Return how many leading rows were written; the rest belongs into the next shard."""

    def finish(self) -> Shard:
        """Write the table and fsync all files."""

    def abandon(self) -> None:
        """Remove its files."""


def shard_writer(
    layout: Layout,
    folder: Path,
    fields: Sequence[Field],
    *,
    number: int,
    first_sample: int,
    shard_bytes: int,
) -> ShardWriter:
    """number, first_sample: of the shard in the pack, and of its first sample."""
    paths = [folder / name for name in file_names(layout, fields, number)]
    if layout == "tar":
        return _TarShard(paths, fields, first_sample, shard_bytes)
    return _NpyShard(paths, fields, shard_bytes)


class _NpyShard:
    """Layout npy: one file per field. Samples have equal sizes, so the capacity is known."""

    def __init__(self, paths: Sequence[Path], fields: Sequence[Field], shard_bytes: int) -> None:
        self.num_samples = 0
        self._fields = fields
        self._table_path = paths[0]
        self._capacity = max(1, shard_bytes // max(1, sum(sample_bytes(f) or 0 for f in fields)))
        self._crcs: list[NDArray[np.uint32]] = []
        self._files: list[HashedFile] = []
        for path, field in zip(paths[1:], fields, strict=True):
            self._files.append(HashedFile(path))
            self._files[-1].write(self._header(field, self._capacity))

    def add(self, sample: Sample) -> bool:
        return self.add_rows({name: np.asarray(part)[None] for name, part in sample.items()}) == 1

    def add_rows(self, rows: Rows) -> int:
        taken = min(self._capacity - self.num_samples, len(next(iter(rows.values()))))
        crcs = []
        for field, file in zip(self._fields, self._files, strict=True):
            part = np.ascontiguousarray(rows[field.name][:taken], element(field))
            file.write(part.tobytes())
            crcs.append(crcs_of_rows(part))
        self._crcs.append(np.stack(crcs, axis=1))
        self.num_samples += taken
        return taken

    def finish(self) -> Shard:
        if self.num_samples < self._capacity:
            for field, file in zip(self._fields, self._files, strict=True):
                file.replace_start(self._header(field, self.num_samples))
        data = [file.finish() for file in self._files]
        table = _write_table(self._table_path, np.concatenate(self._crcs).astype("<u4"))
        return Shard(num_samples=self.num_samples, files=[table, *data])

    def abandon(self) -> None:
        for file in self._files:
            file.abandon()
        self._table_path.unlink(missing_ok=True)

    def _header(self, field: Field, num_samples: int) -> bytes:
        """Return a header of the same length for the last shard, which has fewer samples."""
        dtype, shape = element(field), field.shape or []
        num_bytes = len(npy_header(dtype, [self._capacity, *shape]))
        return npy_header(dtype, [num_samples, *shape], num_bytes=num_bytes)


class _TarShard:
    """Layout tar: consecutive members NAME.FIELD.npy (.png, .jpg), NAME the sample's number."""

    def __init__(
        self,
        paths: Sequence[Path],
        fields: Sequence[Field],
        first_sample: int,
        shard_bytes: int,
    ) -> None:
        self.num_samples = 0
        self._fields = fields
        self._endings = [f"{field.name}.{ENDINGS[field.encoding]}" for field in fields]
        self._table_path = paths[0]
        self._first_sample = first_sample
        self._shard_bytes = shard_bytes
        self._spans: list[tuple[int, int, int]] = []
        self._file = HashedFile(paths[1])

    def add(self, sample: Sample) -> bool:
        members = [_member(field, sample[field.name]) for field in self._fields]
        needed = sum(BLOCK_BYTES + padded(len(header) + len(rest)) for header, rest, _ in members)
        if self.num_samples and self._file.size_bytes + needed + len(END) > self._shard_bytes:
            return False
        for ending, (header, content, is_apart) in zip(self._endings, members, strict=True):
            self._write(ending, header, content, is_apart)
        self.num_samples += 1
        return True

    def add_rows(self, rows: Rows) -> int:
        num_rows = len(next(iter(rows.values())))
        for row in range(num_rows):
            if not self.add({name: part[row] for name, part in rows.items()}):
                return row
        return num_rows

    def finish(self) -> Shard:
        self._file.write(END)
        tar = self._file.finish()
        table = np.array(self._spans, "<i8").reshape(self.num_samples, len(self._fields), 3)
        return Shard(
            num_samples=self.num_samples, files=[_write_table(self._table_path, table), tar]
        )

    def abandon(self) -> None:
        self._file.abandon()
        self._table_path.unlink(missing_ok=True)

    def _write(self, ending: str, header: bytes, content: bytes, is_apart: bool) -> None:
        size = len(header) + len(content)
        name = f"{self._first_sample + self.num_samples:09d}.{ending}"
        self._file.write(member_header(name, size))
        start = self._file.size_bytes
        self._file.write(header)
        if is_apart:
            span = (start + len(header), len(content), zlib.crc32(content))
        else:
            span = (start, size, zlib.crc32(content, zlib.crc32(header)))
        self._spans.append(span)
        self._file.write(content)
        self._file.write(bytes(padded(size) - size))


def _member(field: Field, part: NDArray[Any] | bytes) -> tuple[bytes, bytes, bool]:
    """Return header, payload, and whether the table refers to the payload alone: where the shape is
    known, only other programs need the header."""
    if isinstance(part, bytes):
        return b"", part, True
    array = np.ascontiguousarray(part, element(field)).reshape(np.shape(part))
    return npy_header(array.dtype, array.shape), array.tobytes(), field.shape is not None


def _write_table(path: Path, table: NDArray[Any]) -> File:
    file = HashedFile(path)
    try:
        file.write(npy_header(table.dtype, table.shape))
        file.write(table.tobytes())
        return file.finish()
    except OSError:
        file.abandon()
        raise
