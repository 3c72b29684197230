"""Arrays of images, and a file cache for arrays that are costly to make, verified when read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.file_lock import exclusive
from phalanx.records.files import write_atomically

Bytes = NDArray[np.uint8]

LOCK_TIMEOUT_S = 60.0


class Arrays(NamedTuple):
    """Images (n, 28, 28), or (n, 3, 32, 32) of colours; labels (n,) from 0 to 9."""

    train_images: Bytes
    train_labels: Bytes
    validation_images: Bytes
    validation_labels: Bytes


def cached(path: Path, make: Callable[[], Bytes]) -> Bytes:
    """The array in `path`; made and stored first where it is missing or damaged.

    When several processes ask at once, one makes it and the others wait for the file. Where the
    folder cannot be written the array is only made.
    """
    array = read(path)
    if array is not None:
        return array
    try:
        with exclusive(path, timeout_s=LOCK_TIMEOUT_S):
            return _read_or_store(path, make)
    except TimeoutError:
        return make()


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


def _read_or_store(path: Path, make: Callable[[], Bytes]) -> Bytes:
    array = read(path)  # the process before us may have made it
    if array is None:
        array = make()
        with suppress(OSError):
            _store(path, array)
    return array


def _store(path: Path, array: Bytes) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    write_atomically(checksum_file(path), f"{digest}\n".encode())
