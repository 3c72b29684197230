"""Loaders whose readers run across epochs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from phalanx.bench.io.formats.known import OPEN
from phalanx.bench.io.formats.store import Indices, Rows, Shape, Store
from phalanx.data.reading.prefetch import make_readers
from phalanx.records.io import Format, IoCell, Loader, ReaderKind


class BatchReader:
    """Callable that returns the rows of `indices`; each process opens the data at its first use."""

    def __init__(self, format_: Format, folder: Path, shape: Shape) -> None:
        self._data = format_, folder, shape
        self._lock = threading.Lock()
        self._store: Store | None = None

    def __call__(self, indices: Indices) -> Rows:
        with self._lock:
            if self._store is None:
                format_, folder, shape = self._data
                self._store = OPEN[format_](folder, shape)
            store = self._store
        return store.read(indices)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchReader, self._data


TIMEOUT_S = 300.0  # for one batch
NOTHING: Indices = np.empty(0, np.int64)  # opens the data and reads none of it


class BatchLoader(Protocol):
    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]: ...

    def close(self) -> None: ...


class PhalanxLoader:
    """Phalanx's readers."""

    def __init__(self, reader: BatchReader, readers: int, kind: ReaderKind) -> None:
        self._reader = reader
        self._readers = make_readers(reader, readers, kind)
        begin = [NOTHING] * max(1, readers)  # every reader has started and opened its data
        for _ in self._readers.results(begin, depth=len(begin), timeout_s=TIMEOUT_S):
            pass

    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]:
        return self._readers.results(wanted, depth=max(1, depth), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self._readers.close()
        self._reader.close()


Key = tuple[Format, Loader, ReaderKind, int, int]


class LoaderCache:
    """Started loaders by their options, each made at its first use.

    The kernel keeps the pages of mapped files in its page cache: before a cold epoch all loaders of
    the format are closed.
    """

    def __init__(self) -> None:
        self._made: dict[Key, BatchLoader] = {}

    def has(self, cell: IoCell) -> bool:
        return _key(cell) in self._made

    def of(self, cell: IoCell, folder: Path, shape: Shape) -> BatchLoader:
        key = _key(cell)
        if key not in self._made:
            self._made[key] = _start(cell, BatchReader(cell.format, folder, shape))
        return self._made[key]

    def end(self, format_: Format) -> None:
        """Close the loaders of one format."""
        for key in [key for key in self._made if key[0] == format_]:
            self._made.pop(key).close()

    def close(self) -> None:
        for format_ in {key[0] for key in self._made}:
            self.end(format_)


def _key(cell: IoCell) -> Key:
    return cell.format, cell.loader, cell.kind, cell.readers, cell.depth


def _start(cell: IoCell, reader: BatchReader) -> BatchLoader:
    if cell.loader == "phalanx":
        return PhalanxLoader(reader, cell.readers, cell.kind)
    from phalanx.bench.io.torch_loader import TorchLoader  # import torch only if needed

    batched = cell.loader == "torch-batched"
    return TorchLoader(reader, readers=cell.readers, depth=cell.depth, batched=batched)
