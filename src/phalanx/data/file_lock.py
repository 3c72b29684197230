"""Inter-process file lock, released when its holder ends, even if killed."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from phalanx.records.regular_file import open_lock

_POLL_S = 0.05


@contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Keep other processes away from `path`, by a file beside it.

    Where there can be no lock (a folder that cannot be written, a file system without locks)
    the work goes on without.
    Raises: TimeoutError when another process keeps `path` for longer than `timeout_s`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_lock(path.with_name(f".{path.name}.lock"))
    except OSError:
        yield
        return
    with file:
        _wait_for_lock(file, time.monotonic() + timeout_s)
        yield


def _wait_for_lock(file: IO[bytes], deadline: float) -> None:
    while not try_lock(file):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{file.name} is held by another process")
        time.sleep(_POLL_S)


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
