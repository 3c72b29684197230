"""Reading of files that may be gzipped, detected by their first bytes, not their names."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from phalanx.errors import UserError
from phalanx.records.regular_file import open_regular, readable

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 2**20


def read_unzipped(path: Path, *, limit_bytes: int | None = None) -> bytes:
    """The content of a file, unzipped where it is gzipped.

    limit_bytes: read no further; a small file that unzips without end cannot fill the memory.
    Raises: UserError when the file cannot be read or its compression is damaged.
    """
    with _opened(path) as (_, content):
        return content.read(-1 if limit_bytes is None else limit_bytes)


def open_unzipped(path: Path, *, limit_bytes: int) -> IO[bytes]:
    """Open a file; one that is gzipped is unzipped into a temporary file.

    Raises: UserError when it cannot be read, its compression is damaged, or it unzips to more than
            `limit_bytes`.
    """
    with _opened(path) as (file, content):
        if content is file:
            return path.open("rb")
        copy = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            while chunk := content.read(_CHUNK_BYTES):
                copy.write(chunk)
                if copy.tell() > limit_bytes:
                    raise UserError(f"{path} unzips to more than {limit_bytes / 1e6:,.0f} MB")
        except BaseException:
            copy.close()
            raise
        copy.seek(0)
        return copy


def unzipped_size(path: Path, expected_bytes: int) -> int:
    """The size of a file's content, at most one byte more than `expected_bytes`; it is not held in
    memory.

    A gzip file ends with the size of its content, so one that is as it should be costs no
    unzipping; a file cut short ends with anything and is unzipped to see how far it goes.
    Raises: UserError when the file cannot be read or ends in the middle.
    """
    limit, found = expected_bytes + 1, 0
    with _opened(path) as (file, content):
        size = file.seek(0, 2)
        if content is file:
            return min(size, limit)
        file.seek(max(0, size - 4))
        if int.from_bytes(file.read(), "little") == expected_bytes:
            return expected_bytes
        file.seek(0)
        while chunk := content.read(min(_CHUNK_BYTES, limit - found)):
            found += len(chunk)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file; yield it and its content, unzipped where it is gzipped."""
    with readable(path):
        try:
            with open_regular(path) as file:
                zipped = file.read(2) == GZIP_MAGIC
                file.seek(0)
                yield file, cast(IO[bytes], gzip.GzipFile(fileobj=file)) if zipped else file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is truncated or damaged: {error}") from error
