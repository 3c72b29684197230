"""An array that is costly to make, kept as a file that is verified before it is believed."""

from __future__ import annotations

import fcntl
import hashlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from phalanx.data.arrays import Bytes
from phalanx.records.files import write_atomically


LOCK_TIMEOUT_S = 60.0
_LOCK_POLL_S = 0.05


def cached(path: Path, make: Callable[[], Bytes]) -> Bytes:
    """The array in `path`; made and stored first where it is missing or damaged.

    When several processes ask at once, one makes it and the others wait for the file. Where the
    folder cannot be written the array is only made.
    """
    array = read(path)
    if array is not None:
        return array
    with exclusive(path, timeout_s=LOCK_TIMEOUT_S):
        array = read(path)  # the process before us may have made it
        if array is None:
            array = make()
            with suppress(OSError):
                _store(path, array)
    return array


def read(path: Path) -> Bytes | None:
    """The array in `path`, or None where it is not what was stored."""
    try:
        content, expected = path.read_bytes(), checksum_file(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    if hashlib.sha256(content).hexdigest() != expected.strip():
        return None
    array: Bytes = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def checksum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[bool]:
    """Hold `path` against other processes; says whether it is held.

    It is not where another process keeps it longer than `timeout_s`, or the folder cannot be
    written. The lock ends with its process, even with a killed one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError:
        yield False
        return
    with lock:
        yield _locked_within(lock.fileno(), timeout_s)


def _locked_within(descriptor: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError:  # a file system without locks
            return False


def _store(path: Path, array: Bytes) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    write_atomically(checksum_file(path), f"{digest}\n".encode())
