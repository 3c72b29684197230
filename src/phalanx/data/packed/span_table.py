"""Offset, size and CRC-32 of every part of every sample, from each shard's table file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.damage import WHAT_TO_DO
from phalanx.data.packed.index import PackIndex, Shard, sample_bytes
from phalanx.errors import UserError
from phalanx.records.regular_file import read_regular, readable

NOWHERE = 1 << 62
"""An offset beyond every file, for parts whose table entry is invalid."""


class PartSpans(NamedTuple):
    """Spans of one field, (n,) each."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crcs: NDArray[np.uint32]


class SpanTable:
    """Table of a split; each shard's rows are read at first use.

    Memory: 24 bytes a part in a tar, 4 bytes in `.npy` files, of the shards used so far.
    """

    def __init__(
        self, index: PackIndex, path_of: Callable[[int, int], Path], *, is_strict: bool
    ) -> None:
        """path_of: (shard, number of the file) → its path. is_strict: a shard's table must have the
        SHA-256 of the index; otherwise its samples are checked one by one."""
        self._index = index
        self._path_of = path_of
        self._is_strict = is_strict
        self._lock = threading.Lock()
        self._altered: set[int] = set()
        self._is_read = np.zeros(len(index.shards), bool)
        counts = [shard.num_samples for shard in index.shards]
        self.first_samples = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._file_bytes = np.array(
            [[f.bytes for f in s.files[1:]] for s in index.shards], np.int64
        )
        if index.layout == "npy":  # bytes before the first sample
            sample_sizes = [sample_bytes(field) or 0 for field in index.fields]
            self._headers = self._file_bytes - np.outer(counts, sample_sizes)
            self.headers = list(np.ascontiguousarray(self._headers.T))
        else:
            self.headers = [np.empty(0, np.int64)] * len(index.fields)
        row = (len(index.fields), 3) if index.layout == "tar" else (len(index.fields),)
        kind = np.dtype("<i8") if index.layout == "tar" else np.dtype("<u4")
        self._rows = np.zeros((index.num_samples, *row), kind)  # untouched pages cost nothing

    def parts(self, field: int, samples: NDArray[np.int64], shards: NDArray[np.int64]) -> PartSpans:
        """Return the location of one field of `samples`, which lie in `shards`, (n,) both.

        Raises: UserError when a shard's table is missing or not as it was packed.
        """
        if not self._is_read[shards].all():
            for shard in np.unique(shards[~self._is_read[shards]]).tolist():
                self._read(shard)
        if self._index.layout == "tar":
            return self._parts_of_tar(field, samples, shards)
        return self._parts_of_npy(field, samples, shards)

    def entries(self, field: int) -> tuple[NDArray[Any], int, int]:
        """Return the entries of all samples, their stride in bytes, and the byte offset of the
        field's first entry: a checksum (4 bytes), in a tar offset, size and checksum (8 each).
        Zeros where a shard's table was not read yet."""
        sample = self._rows[:1].nbytes
        return self._rows, sample, field * (sample // len(self._index.fields))

    def altered_entry(self, sample: int, shard: int) -> int | None:
        """Return the byte offset of a sample's entry in its shard's table if the table was altered,
        else None. An altered table is reported in place of the sample."""
        if shard not in self._altered:
            return None
        first, end = self.first_samples[shard : shard + 2].tolist()
        row_bytes = self._rows[:1].nbytes
        header_bytes = self._index.shards[shard].files[0].bytes - (end - first) * row_bytes
        return int(header_bytes + (sample - first) * row_bytes)

    def _parts_of_npy(
        self, field: int, samples: NDArray[np.int64], shards: NDArray[np.int64]
    ) -> PartSpans:
        size = sample_bytes(self._index.fields[field]) or 0
        rows = samples - self.first_samples[shards]
        return PartSpans(
            self._headers[shards, field] + rows * size,
            np.full(len(samples), size, np.int64),
            self._rows[samples, field],
        )

    def _parts_of_tar(
        self, field: int, samples: NDArray[np.int64], shards: NDArray[np.int64]
    ) -> PartSpans:
        offsets, sizes, crcs = self._rows[samples, field].T.copy()
        file_bytes = self._file_bytes[shards, 0]
        expected = sample_bytes(self._index.fields[field])
        makes_sense = (offsets >= 0) & (sizes <= file_bytes) & (crcs >> 32 == 0)
        makes_sense &= (sizes > 0) if expected is None else (sizes == expected)
        sizes = np.where(makes_sense, sizes, 1 if expected is None else expected)
        return PartSpans(np.where(makes_sense, offsets, NOWHERE), sizes, crcs.astype(np.uint32))

    def _read(self, number: int) -> None:
        with self._lock:
            if self._is_read[number]:
                return
            shard, path = self._index.shards[number], self._path_of(number, 0)
            content, is_altered = _content(path, shard, self._is_strict)
            if is_altered:
                self._altered.add(number)
            rows = self._rows[self.first_samples[number] : self.first_samples[number + 1]]
            kept = content[len(content) - rows.nbytes :] if len(content) >= rows.nbytes else b""
            if kept:
                rows[:] = np.frombuffer(kept, rows.dtype).reshape(rows.shape)
            self._is_read[number] = True


def _content(path: Path, shard: Shard, is_strict: bool) -> tuple[bytes, bool]:
    """Return a shard's table, and whether it was altered."""
    with readable(path):
        content = read_regular(path)
    is_altered = hashlib.sha256(content).hexdigest() != shard.files[0].sha256
    if is_strict and is_altered:
        raise UserError(
            f"{path}, the checksums of {shard.num_samples} samples, is not what was packed\n"
            f"{WHAT_TO_DO}"
        )
    return content, is_altered
