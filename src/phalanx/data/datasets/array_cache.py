"""Arrays of a data set, and a file cache for arrays that are costly to make, verified when read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.file_lock import exclusive
from phalanx.records.files import write_atomically

Bytes = NDArray[np.uint8]

LOCK_TIMEOUT_S = 60.0
"""Time to wait for a process that makes the arrays; then this one makes them for itself."""


class Arrays(NamedTuple):
    """Images (n, 28, 28), or (n, 3, 32, 32) of colours, with labels (n,) from 0 to 9; of text
    (n, context) int64, target [i, t] being the character after inputs [i, :t + 1]."""

    train_inputs: NDArray[Any]
    train_targets: NDArray[Any]
    validation_inputs: NDArray[Any]
    validation_targets: NDArray[Any]


def cached(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays in `path`; made and stored first where they are missing or damaged.

    When several processes ask at once, one makes them and the others wait for the file. Where the
    folder cannot be written the arrays are only made.
    """
    arrays = read(path)
    if arrays is not None:
        return arrays
    try:
        with exclusive(path, timeout_s=LOCK_TIMEOUT_S):
            arrays = read(path)  # the process before us may have made them
            if arrays is None:
                arrays = make()
                with suppress(OSError):
                    _store(path, arrays)
            return arrays
    except TimeoutError:
        return make()


def read(path: Path) -> Arrays | None:
    """Return the arrays in `path`, or None where they are not what was stored."""
    try:
        content, expected = path.read_bytes(), checksum_file(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    if hashlib.sha256(content).hexdigest() != expected.strip():
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return Arrays(*(file[name] for name in file.files))


def checksum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _store(path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays._asdict())
    write_atomically(path, buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    write_atomically(checksum_file(path), f"{digest}\n".encode())
