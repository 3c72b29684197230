"""Loaders whose readers run across epochs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from phalanx.bench.io.formats import STORAGE, Indices, Rows, Shape, Store
from phalanx.data.reading.prefetch import Readers
from phalanx.records.io import Format, IoCell, ReaderKind


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
                self._store = STORAGE[format_].open(folder, shape)
            store = self._store
        return store.read(indices)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchReader, self._data


TIMEOUT_S = 300.0  # waiting for one batch
NOTHING: Indices = np.empty(0, np.int64)  # opens the data and reads none of it


class BatchLoader(Protocol):
    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]: ...

    def close(self) -> None: ...


class PhalanxLoader:
    """Phalanx's readers."""

    def __init__(self, reader: BatchReader, readers: int, kind: ReaderKind) -> None:
        self._reader = reader
        self._readers = Readers(reader, readers, kind)
        begin = [NOTHING] * max(1, readers)  # every reader has started and opened its data
        for _ in self._readers.results(begin, depth=len(begin), timeout_s=TIMEOUT_S):
            pass

    def batches(self, wanted: list[Indices], depth: int) -> Iterator[Rows]:
        return self._readers.results(wanted, depth=max(1, depth), timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self._readers.close()
        self._reader.close()


def open_loader(cell: IoCell, folder: Path, shape: Shape) -> BatchLoader:
    """Start the loader of a cell; its readers run across epochs."""
    reader = BatchReader(cell.format, folder, shape)
    if cell.loader == "phalanx":
        return PhalanxLoader(reader, cell.readers, cell.kind)
    from phalanx.bench.io.torch_loader import TorchLoader  # import torch only if needed

    batched = cell.loader == "torch-batched"
    return TorchLoader(reader, readers=cell.readers, depth=cell.depth, batched=batched)
