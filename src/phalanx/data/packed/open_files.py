"""Files that many threads read: opened when they are first needed, closed when too many are."""

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
    address: int  # of the file in memory; 0: it is not mapped
    map_bytes: int


class OpenFiles(Generic[Key]):
    """At most about `limit` files are open; those in use are never closed."""

    def __init__(
        self, path_of: Callable[[Key], Path], is_mapped: Callable[[Key], bool], *, limit: int
    ) -> None:
        """is_mapped: whether a file shall lie in memory."""
        self._path_of = path_of
        self._is_mapped = is_mapped
        self._limit = limit
        self._lock = threading.RLock()  # what is held may die in the midst of this
        self._files: OrderedDict[Key, _OpenFile] = OrderedDict()

    @contextmanager
    def using(self, keys: Sequence[Key]) -> Iterator[list[Opened]]:
        """These files, for as long as the block lasts.

        Raises: OSError when one cannot be opened.
        """
        held = Held(self, keys)
        try:
            yield held.opened
        finally:
            held.give_back()

    def forget(self, keys: Sequence[Key]) -> None:
        """From now on these are opened anew, where `path_of` says; who uses them reads on."""
        with self._lock:
            for key in keys:
                file = self._files.pop(key, None)
                if file is not None:
                    file.is_forgotten = True
                    if not file.num_users:
                        file.close()

    def close(self) -> None:
        """Files in use are closed by who uses them last."""
        with self._lock:
            keys = list(self._files)
        self.forget(keys)

    def take(self, keys: Sequence[Key]) -> list[_OpenFile]:
        """For `give_back`. Raises: OSError when one cannot be opened; then none is taken."""
        taken: list[_OpenFile] = []
        try:
            with self._lock:
                for key in keys:
                    taken.append(self._take(key))
        except OSError:
            self.give_back(taken)
            raise
        return taken

    def give_back(self, taken: list[_OpenFile]) -> None:
        with self._lock:
            for file in taken:
                self._give_back(file)
            self._close_unused(self._limit)

    def _take(self, key: Key) -> _OpenFile:
        file = self._files.get(key)
        if file is None:
            file = _OpenFile(self._path_of(key), self._is_mapped(key))
            self._files[key] = file
        self._files.move_to_end(key)
        file.num_users += 1
        return file

    def _give_back(self, file: _OpenFile) -> None:
        file.num_users -= 1
        if file.is_forgotten and not file.num_users:
            file.close()

    def _close_unused(self, limit: int) -> None:
        if len(self._files) <= limit:
            return
        unused = [key for key, file in self._files.items() if not file.num_users]
        for key in unused[: len(self._files) - limit]:
            self._files.pop(key).close()


class Held:
    """Files that stay open until they are given back, or this object dies."""

    def __init__(self, files: OpenFiles[Key], keys: Sequence[Key]) -> None:
        """Raises: OSError when one cannot be opened."""
        self._taken: list[_OpenFile] = []
        self._give_back = files.give_back
        self._taken = files.take(keys)
        self.opened = [file.opened for file in self._taken]

    def give_back(self) -> None:
        taken, self._taken = self._taken, []
        self._give_back(taken)

    def __del__(self) -> None:
        if self._taken:
            self.give_back()


class _OpenFile:
    def __init__(self, path: Path, is_mapped: bool) -> None:
        check_regular(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._map = _mapped(descriptor) if is_mapped else None
        address = 0 if self._map is None else self._map.ctypes.data
        map_bytes = 0 if self._map is None else self._map.size
        self.opened = Opened(descriptor, address, map_bytes)
        self.num_users = 0
        self.is_forgotten = False

    def close(self) -> None:
        self._map = None  # the last reference
        os.close(self.opened.descriptor)


def _mapped(descriptor: int) -> NDArray[np.uint8] | None:
    """None where the system does not; the file is read then."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    except (OSError, ValueError):
        return None
