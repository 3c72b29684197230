"""Inter-process file lock, released when its holder ends, even if killed."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from phalanx.records.regular_file import open_lock


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes away from `path`, by a file beside it; wait for the one that has it.

    Where there can be no lock (a folder that cannot be written, a file system without locks) the
    work goes on without.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_lock(path.with_name(f".{path.name}.lock"))
    except OSError:
        yield
        return
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed, or this process ends; return False when another process
    holds it. A file system without locks refuses nobody."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
