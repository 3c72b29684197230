"""Inter-process file lock, released when its holder ends, even if killed."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from phalanx.records.regular_file import open_lock

_POLL_S = 0.05


@contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Keep other processes away from `path`, by a file beside it.

    Where there can be no lock (a folder that cannot be written, a file system without locks)
    the work goes on without.
    Raises: TimeoutError when another process keeps `path` for longer than `timeout_s`.
    """
    place, deadline = path.with_name(f".{path.name}.lock"), time.monotonic() + timeout_s
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while (file := lock_file(place)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except OSError:
        yield
        return
    if file is None:
        raise TimeoutError(f"{place} is held by another process")
    with file:
        yield


def lock_file(path: Path) -> IO[bytes] | None:
    """Open and lock a file until it is closed, or this process ends; None: another process holds
    it. A file system without locks refuses nobody."""
    file = open_lock(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:  # a file system without locks
        return file
    return file
