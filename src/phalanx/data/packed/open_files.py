"""Cache of open files for many threads: opened at first use, dropped when too many are open."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.records.regular_file import open_regular

FileKey = tuple[int, int]
"""(shard, number of the file)"""


class OpenFile:
    """A file that is open, and mapped if wanted, as long as this object lives."""

    def __init__(self, path: Path, *, is_mapped: bool) -> None:
        self._file = open_regular(path).detach()
        descriptor = self._file.fileno()
        self._map = _mapped(descriptor) if is_mapped else np.empty(0, np.uint8)
        address = self._map.ctypes.data if self._map.size else 0
        self.numbers = descriptor, address, self._map.size
        """Descriptor, address of the mapping (0: not mapped), bytes mapped."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            self._file.close()


class OpenShards(NamedTuple):
    """The file of one number in all shards; they stay open as long as this object."""

    files: list[OpenFile]
    numbers: NDArray[np.int64]
    """(shards, 3): descriptor, address of the mapping, bytes mapped."""


class OpenFiles:
    """Keeps at most `limit` files open, and besides those that somebody refers to. Thread-safe."""

    def __init__(
        self, path_of: Callable[[int, int], Path], mapped: Container[FileKey], *, limit: int
    ) -> None:
        """mapped: the files that are memory-mapped."""
        self._lock = threading.Lock()
        self._open = lru_cache(limit)(lambda *key: OpenFile(path_of(*key), is_mapped=key in mapped))
        self._shards: dict[int, OpenShards] = {}

    def get(self, keys: Iterable[FileKey]) -> list[OpenFile]:
        """Return these files; each stays open as long as the caller refers to it.

        Raises: OSError when one cannot be opened.
        """
        with self._lock:
            return [self._open(*key) for key in keys]

    def of_shards(self, number: int, num_shards: int) -> OpenShards:
        """Return the files of one number, for reading without further look-ups.

        Raises: OSError when one cannot be opened.
        """
        found = self._shards.get(number)
        if found is None:
            with self._lock:
                files = [self._open(shard, number) for shard in range(num_shards)]
                numbers = np.array([file.numbers for file in files], np.int64)
                found = self._shards[number] = OpenShards(files, numbers)
        return found

    def close(self) -> None:
        """Close all files; a file in use is closed after its last user, and the next use opens it
        again at `path_of`."""
        with self._lock:
            self._open.cache_clear()
            self._shards.clear()


def _mapped(descriptor: int) -> NDArray[np.uint8]:
    """Map a file; empty where the system refuses, and the file is read instead."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return np.empty(0, np.uint8)
