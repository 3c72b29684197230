"""Files that must be regular: a FIFO would block whoever opens it, and a device never ends."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.errors import UserError


def check_regular(path: Path) -> None:
    """Raises: OSError when there is no such file, or it is a folder, a FIFO, a socket or a device;
    its `strerror` and `filename` say so."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises: OSError as `check_regular`."""
    check_regular(path)
    return path.read_bytes()


@contextmanager
def readable(path: Path | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a UserError. path: None where the error names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path or error.filename} cannot be read: {error.strerror}") from error
