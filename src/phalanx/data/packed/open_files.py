"""Cache of open files for many threads: opened at first use, closed when too many are open."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.records.regular_file import check_regular

Key = TypeVar("Key", bound=Hashable)


class Opened(NamedTuple):
    descriptor: int
    address: int  # of the mapping; 0: not mapped
    map_bytes: int


class OpenFiles(Generic[Key]):
    """At most about `limit` files are open; those in use are never closed."""

    def __init__(
        self, path_of: Callable[[Key], Path], is_mapped: Callable[[Key], bool], *, limit: int
    ) -> None:
        """is_mapped: whether a file is memory-mapped."""
        self._path_of = path_of
        self._is_mapped = is_mapped
        self._limit = limit
        self._lock = threading.RLock()  # a lease may be finalized while this thread holds the lock
        self._files: OrderedDict[Key, _OpenFile] = OrderedDict()

    @contextmanager
    def using(self, keys: Sequence[Key]) -> Iterator[list[Opened]]:
        """Keep these files open within the block.

        Raises: OSError when one cannot be opened.
        """
        lease = FileLease(self, keys)
        try:
            yield lease.opened
        finally:
            lease.release()

    def invalidate(self, keys: Sequence[Key]) -> None:
        """Drop these files; the next use opens them again at `path_of`, current users finish."""
        with self._lock:
            for key in keys:
                file = self._files.pop(key, None)
                if file is not None:
                    file.is_invalidated = True
                    if not file.num_users:
                        file.close()

    def close(self) -> None:
        """Close all files; a file in use is closed when its last user releases it."""
        with self._lock:
            keys = list(self._files)
        self.invalidate(keys)

    def acquire(self, keys: Sequence[Key]) -> list[_OpenFile]:
        """Open and pin files until `release`.

        Raises: OSError when one cannot be opened; then none is pinned.
        """
        files: list[_OpenFile] = []
        try:
            with self._lock:
                for key in keys:
                    files.append(self._acquire(key))
        except OSError:
            self.release(files)
            raise
        return files

    def release(self, files: list[_OpenFile]) -> None:
        with self._lock:
            for file in files:
                self._release(file)
            self._close_unused(self._limit)

    def _acquire(self, key: Key) -> _OpenFile:
        file = self._files.get(key)
        if file is None:
            file = _OpenFile(self._path_of(key), self._is_mapped(key))
            self._files[key] = file
        self._files.move_to_end(key)
        file.num_users += 1
        return file

    def _release(self, file: _OpenFile) -> None:
        file.num_users -= 1
        if file.is_invalidated and not file.num_users:
            file.close()

    def _close_unused(self, limit: int) -> None:
        if len(self._files) <= limit:
            return
        unused = [key for key, file in self._files.items() if not file.num_users]
        for key in unused[: len(self._files) - limit]:
            self._files.pop(key).close()


class FileLease:
    """Files that stay open until `release`, or until this object dies."""

    def __init__(self, files: OpenFiles[Key], keys: Sequence[Key]) -> None:
        """Raises: OSError when one cannot be opened."""
        self._files: list[_OpenFile] = []
        self._release = files.release
        self._files = files.acquire(keys)
        self.opened = [file.opened for file in self._files]

    def release(self) -> None:
        files, self._files = self._files, []
        self._release(files)

    def __del__(self) -> None:
        if self._files:
            self.release()


class _OpenFile:
    def __init__(self, path: Path, is_mapped: bool) -> None:
        check_regular(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._map = _mapped(descriptor) if is_mapped else None
        address = 0 if self._map is None else self._map.ctypes.data
        map_bytes = 0 if self._map is None else self._map.size
        self.opened = Opened(descriptor, address, map_bytes)
        self.num_users = 0
        self.is_invalidated = False

    def close(self) -> None:
        self._map = None  # the last reference
        os.close(self.opened.descriptor)


def _mapped(descriptor: int) -> NDArray[np.uint8] | None:
    """Map a file; None where the system refuses, and the file is read instead."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return None
