"""Verification of a pack: every byte against the checksums made when it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phalanx.data.packed.index import File, PackIndex
from phalanx.data.packed.index_file import read_index
from phalanx.data.packed.pack import Pack
from phalanx.data.packed.part_reader import DamagedError
from phalanx.errors import UserError
from phalanx.records.regular_file import open_regular

CHUNK_BYTES = 4 * 2**20

OnRead = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class FileState(NamedTuple):
    path: Path
    fault: str
    """Empty: as it was written."""


def size_bytes(index: PackIndex) -> int:
    return sum(file.bytes for shard in index.shards for file in shard.files)


def verify(folder: Path, *, num_threads: int, on_read: OnRead = lambda _: None) -> list[FileState]:
    """Compare every file of a split with its SHA-256, in `num_threads` threads.

    Raises: UserError when the index is missing or damaged.
    """
    files = [file for shard in read_index(folder).shards for file in shard.files]
    with ThreadPoolExecutor(num_threads) as pool:
        faults = pool.map(lambda file: file_fault(folder, file, on_read), files)
        return [FileState(folder / f.name, fault) for f, fault in zip(files, faults, strict=True)]


def damaged_samples(folder: Path, states: Sequence[FileState]) -> list[DamagedError]:
    """Return the damaged samples of these files, found by reading them; none of shards whose table
    of checksums is damaged, or where a file is missing altogether."""
    damaged = {state.path.name for state in states if state.fault}
    try:
        pack = Pack(folder, damaged="skip")
    except UserError:
        return []
    with closing(pack):
        for number, shard in enumerate(pack.shards):
            table, *data = (file.name in damaged for file in shard.files)
            if any(data) and not table:
                first = int(pack.first_samples[number])
                for sample in range(first, first + shard.num_samples):  # they may be large
                    for field in pack.fields:
                        pack.read_bytes(field, np.array([sample]))
        return pack.damages


def file_fault(folder: Path, expected: File, on_read: OnRead = lambda _: None) -> str:
    """Compare a file with what was written; return its fault, or nothing. Cost: it is read."""
    path, digest, found = folder / expected.name, hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                found += len(chunk)
                on_read(len(chunk))
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found != expected.bytes:
        return f"has {found} bytes, not {expected.bytes}"
    return "" if digest.hexdigest() == expected.sha256 else "is not what was written"
