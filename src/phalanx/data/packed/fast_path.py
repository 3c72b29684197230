"""Fast path: locate and read fixed-size samples in one call to C (csrc/rows.c).

Locating samples and looking up open files takes a few dozen operations on small arrays, which for
batches of small samples is most of the time. Here the files stay open. The fast path only reports
that all samples are intact; otherwise they are read on the slow path, which opens files and names
the damage.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.checked_reads import compiled
from phalanx.data.packed.index import PackIndex, sample_bytes
from phalanx.data.packed.open_files import OpenFile, OpenFiles
from phalanx.data.packed.span_table import SpanTable


class _HeldFiles(NamedTuple):
    """Files of some shards, which stay open."""

    files: dict[int, OpenFile]
    table: NDArray[np.int64]
    """(shards, 3): descriptor, address of the mapping, bytes mapped; -1: not open."""


class FastPath:
    """Fast reads of one pack. Thread-safe."""

    def __init__(
        self, index: PackIndex, table: SpanTable, files: OpenFiles, *, max_files: int
    ) -> None:
        """max_files: a pack with more files does not use the fast path."""
        self._table, self._files = table, files
        self._num_shards = len(index.shards)
        self._sizes = [sample_bytes(field) or 0 for field in index.fields]
        self._can_keep_open = self._num_shards * len(index.fields) <= max_files
        self._lock = threading.Lock()
        self._held: dict[int, _HeldFiles] = {}
        self._generation = 0

    def read(
        self, field: int, file: int, samples: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> bool:
        """Return whether `out`, (bytes,), now holds all the samples, intact.

        file: number of the field's file in each shard.
        """
        held, module = self._held.get(file), compiled()
        if held is None or module is None or not self._sizes[field]:
            return False
        table = self._table
        return bool(
            module.read_samples(
                table.first_samples,
                held.table,
                table.headers[field],
                *table.entries(field),
                self._sizes[field],
                samples,
                out,
            )
        )

    def open(self, file: int, shards: Collection[int]) -> None:
        """Keep these files open, which have just been read.

        Raises: OSError when one cannot be opened.
        """
        held, generation = self._held.get(file), self._generation
        files = dict(held.files) if held else {}
        missing = [shard for shard in shards if shard not in files]
        if not self._can_keep_open or not missing:
            return
        opened = self._files.get((shard, file) for shard in missing)
        files.update(zip(missing, opened, strict=True))
        table = np.full((self._num_shards, 3), -1, np.int64)
        table[[*files]] = [one.numbers for one in files.values()]
        with self._lock:
            if generation == self._generation:  # else a file may have been relocated meanwhile
                self._held[file] = _HeldFiles(files, table)

    def invalidate(self) -> None:
        """Drop cached handles; reads in flight finish on their own handles."""
        with self._lock:
            self._generation += 1
            self._held.clear()
