"""Fast path: locate and read fixed-size samples in one call to C (csrc/samples.c).

Locating samples and looking up open files takes a few dozen operations on small arrays, which for
batches of small samples is most of the time. Here the files stay open. The fast path only reports
that all samples are intact; otherwise they are read on the slow path, which opens files and names
the damage.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import compiled
from phalanx.data.packed.index import PackIndex
from phalanx.data.packed.open_files import FileLease, OpenFiles
from phalanx.data.packed.shard_files import sample_bytes
from phalanx.data.packed.span_table import SpanTable


class FastPath:
    """Fast reads of one pack. Thread-safe."""

    def __init__(
        self,
        index: PackIndex,
        table: SpanTable,
        files: OpenFiles[tuple[int, int]],
        *,
        max_files: int,
    ) -> None:
        """max_files: a pack with more files does not use the fast path."""
        self._table, self._files = table, files
        self._num_shards = len(index.shards)
        self._sizes = [sample_bytes(field) or 0 for field in index.fields]
        self._can_keep_open = self._num_shards * len(index.fields) <= max_files
        self._lock = threading.Lock()
        self._leases: dict[int, _LeasedFiles] = {}
        self._generation = 0

    def read(
        self, field: int, file: int, samples: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> bool:
        """Return whether `out`, (bytes,), now holds all the samples, intact.

        file: number of the field's file in each shard.
        """
        lease, module = self._leases.get(file), compiled()
        if lease is None or module is None or not self._sizes[field]:
            return False
        table = self._table
        return bool(
            module.read_samples(
                table.first_samples,
                lease.file_table,
                table.headers[field],
                *table.entries(field),
                self._sizes[field],
                samples,
                out,
            )
        )

    def open(self, file: int, shards: Iterable[int]) -> None:
        """Keep these files open, which have just been read.

        Raises: OSError when one cannot be opened.
        """
        lease = self._leases.get(file)
        before = lease.shards if lease else frozenset()
        if not self._can_keep_open or before.issuperset(shards):
            return
        generation = self._generation
        more = _LeasedFiles(self._files, file, before.union(shards), self._num_shards)
        with self._lock:
            if generation == self._generation:  # else a file may have been relocated meanwhile
                self._leases[file] = more

    def invalidate(self) -> None:
        """Drop cached handles; reads in flight finish on their own handles."""
        with self._lock:
            self._generation += 1
            self._leases.clear()


class _LeasedFiles:
    """Files of some shards, open for as long as this object lives."""

    def __init__(
        self,
        files: OpenFiles[tuple[int, int]],
        file: int,
        shards: frozenset[int],
        num_shards: int,
    ) -> None:
        self.shards = shards
        numbers = sorted(shards)
        self._lease = FileLease(files, [(shard, file) for shard in numbers])
        self.file_table = np.full((num_shards, 3), -1, np.int64)
        self.file_table[numbers] = self._lease.opened
