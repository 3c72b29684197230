"""Samples of one size, found and read by one call where nothing is out of the ordinary.

Finding out where samples lie and which files are open takes a few dozen operations on small
arrays: for batches of small samples that is most of the time. Here the files stay open, and C does
the rest (csrc/samples.c). It only ever says that all samples are whole; else they are read the long
way, which opens files and names what is damaged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import PackIndex
from phalanx.data.packed.open_files import Held, OpenFiles
from phalanx.data.packed.rows import compiled
from phalanx.data.packed.shards import sample_bytes
from phalanx.data.packed.table import SpanTable


class ShortWay:
    """Any thread may read."""

    def __init__(
        self,
        index: PackIndex,
        table: SpanTable,
        files: OpenFiles[tuple[int, int]],
        *,
        most_files: int,
    ) -> None:
        """most_files: of a pack with more nothing is kept open, they take turns."""
        self._table, self._files = table, files
        self._num_shards = len(index.shards)
        self._sizes = [sample_bytes(field) or 0 for field in index.fields]
        self._keeps_open = self._num_shards * len(index.fields) <= most_files
        self._lock = threading.Lock()
        self._known: dict[int, _KnownFiles] = {}
        self._times_forgotten = 0

    def read(
        self, field: int, file: int, samples: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> bool:
        """Return whether `out`, (bytes,), now holds all the samples, intact.

        file: number of the field's file in each shard.
        """
        known, module = self._known.get(file), compiled()
        if known is None or module is None or not self._sizes[field]:
            return False
        table = self._table
        return bool(
            module.read_samples(
                table.first_samples,
                known.places,
                table.headers[field],
                *table.entries(field),
                self._sizes[field],
                samples,
                out,
            )
        )

    def open(self, file: int, shards: Iterable[int]) -> None:
        """From now on keep these files open, too, which have just been read.

        Raises: OSError when one cannot be opened.
        """
        known = self._known.get(file)
        before = known.shards if known else frozenset()
        if not self._keeps_open or before.issuperset(shards):
            return
        times = self._times_forgotten
        more = _KnownFiles(self._files, file, before.union(shards), self._num_shards)
        with self._lock:
            if times == self._times_forgotten:  # or one of them may be elsewhere now
                self._known[file] = more

    def forget(self) -> None:
        """Nothing is kept open; who reads reads on."""
        with self._lock:
            self._times_forgotten += 1
            self._known.clear()


class _KnownFiles:
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
        self._held = Held(files, [(shard, file) for shard in numbers])
        self.places = np.full((num_shards, 3), -1, np.int64)
        self.places[numbers] = self._held.opened
