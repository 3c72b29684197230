"""Offset, size and CRC-32 of every part of every sample, from each shard's table file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import PackIndex, sample_bytes, table_dtype
from phalanx.errors import UserError
from phalanx.records.regular_file import read_regular, readable

Indices = NDArray[np.int64]

NOWHERE = 1 << 62
"""An offset beyond every file, for parts whose table entry is invalid."""


class LocatedParts(NamedTuple):
    """One field of some samples, (n,) each, and its location."""

    file: int
    """Number of the file in each shard."""
    samples: Indices
    shards: Indices
    offsets: Indices
    sizes: Indices
    crcs: NDArray[np.uint32]


class SpanTable:
    """Table of a split; each shard's rows are read at first use.

    Memory: 4 bytes a part, and 8 more where samples differ in size, of the shards used so far.
    """

    def __init__(self, index: PackIndex, path_of: Callable[[int, int], Path]) -> None:
        """path_of: (shard, number of the file) → its path."""
        self._index = index
        self._path_of = path_of
        self._lock = threading.Lock()
        self._is_read = np.zeros(len(index.shards), bool)
        counts = [shard.num_samples for shard in index.shards]
        self.first_samples = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._file_bytes = np.array(
            [[f.bytes for f in s.files[1:]] for s in index.shards], np.int64
        )
        self._sizes = [sample_bytes(field) for field in index.fields]
        self._headers = self._file_bytes - np.outer(counts, [size or 0 for size in self._sizes])
        self.headers = list(np.ascontiguousarray(self._headers.T))
        """Bytes before the first sample of each shard, (shards,), for each field."""
        # Untouched pages cost nothing.
        self._rows = np.zeros(index.num_samples, table_dtype(index.fields))

    def locate(self, field: int, indices: Indices) -> LocatedParts:
        """Return the location of a field of these samples.

        Raises: IndexError for a sample that does not exist; UserError when a shard's table is
                missing or not as it was packed.
        """
        samples = np.ascontiguousarray(indices, np.int64)
        num_samples = self._index.num_samples
        if samples.size and not 0 <= samples.min() <= samples.max() < num_samples:
            wrong = samples[(samples < 0) | (samples >= num_samples)][0]
            raise IndexError(f"there is no sample {wrong}: the pack has {num_samples}")
        shards = np.searchsorted(self.first_samples, samples, side="right") - 1
        if not self._is_read[shards].all():
            for shard in np.unique(shards[~self._is_read[shards]]).tolist():
                self._read(shard)
        size, name = self._sizes[field], self._index.fields[field].name
        crcs, rows = self._rows[f"{name}.crc"][samples], samples - self.first_samples[shards]
        if size is not None:
            offsets = self._headers[shards, field] + rows * size
            sizes = np.full(len(samples), size, np.int64)
            return LocatedParts(1 + field, samples, shards, offsets, sizes, crcs)
        ends = self._rows[f"{name}.end"]
        starts = np.where(rows > 0, ends[samples - 1], 0)
        sizes = ends[samples] - starts
        makes_sense = (starts >= 0) & (sizes > 0) & (sizes <= self._file_bytes[shards, field])
        offsets, sizes = np.where(makes_sense, starts, NOWHERE), np.where(makes_sense, sizes, 1)
        return LocatedParts(1 + field, samples, shards, offsets, sizes, crcs)

    def entries(self, field: int) -> tuple[NDArray[np.uint8], int, int]:
        """Return the bytes of the table, those of a sample, and the offset of the field's checksum
        in them. Zeros where a shard's table was not read yet."""
        dtype = self._rows.dtype
        assert dtype.fields is not None
        offset = dtype.fields[f"{self._index.fields[field].name}.crc"][1]
        return self._rows.view(np.uint8), dtype.itemsize, offset

    def _read(self, number: int) -> None:
        with self._lock:
            if self._is_read[number]:
                return
            shard, path = self._index.shards[number], self._path_of(number, 0)
            with readable(path):
                content = read_regular(path)
            rows = self._rows[self.first_samples[number] : self.first_samples[number + 1]]
            if (
                len(content) < rows.nbytes
                or hashlib.sha256(content).hexdigest() != shard.files[0].sha256
            ):
                raise UserError(
                    f"{path}, the checksums of {shard.num_samples} samples, is not what was packed"
                    "\npack it again"
                )
            rows[:] = np.frombuffer(content[len(content) - rows.nbytes :], rows.dtype)
            self._is_read[number] = True
