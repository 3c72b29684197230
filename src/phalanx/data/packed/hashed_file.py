"""A file that is written sequentially while its SHA-256 is computed."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from phalanx.data.packed.index import File

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
