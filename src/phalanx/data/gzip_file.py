"""Reading of files that may be gzipped, detected by their first bytes, not their names."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 2**20


def read_unzipped(path: Path, *, limit_bytes: int | None = None) -> bytes:
    """The content of a file, unzipped where it is gzipped.

    limit_bytes: read no further; a small file that unzips without end cannot fill the memory.
    Raises: UserError when the file cannot be read or its compression is damaged.
    """
    count = -1 if limit_bytes is None else limit_bytes
    try:
        check_regular(path)
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            if not zipped:
                return file.read(count)
            with gzip.open(file) as unzipped:
                return unzipped.read(count)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or damaged: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def unzipped_size(path: Path, expected_bytes: int) -> int:
    """The size of a file's content, at most one byte more than `expected_bytes`; it is not held in
    memory.

    A gzip file ends with the size of its content, so one that is as it should be costs no
    unzipping; a file cut short ends with anything and is unzipped to see how far it goes.
    Raises: UserError when the file cannot be read or ends in the middle.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            zipped = file.read(2) == GZIP_MAGIC
            size = file.seek(0, 2)
            if not zipped:
                return min(size, expected_bytes + 1)
            file.seek(max(0, size - 4))
            if int.from_bytes(file.read(), "little") == expected_bytes:
                return expected_bytes
            return _count(path, expected_bytes + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _count(path: Path, limit_bytes: int) -> int:
    found = 0
    try:
        with gzip.open(path) as file:
            while found < limit_bytes:
                chunk = file.read(min(_CHUNK_BYTES, limit_bytes - found))
                if not chunk:
                    break
                found += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or damaged: {error}") from error
    return found
