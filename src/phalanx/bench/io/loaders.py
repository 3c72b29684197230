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
    """Callable that returns the rows of `indices`. Pickling drops its open stores."""

    def __init__(self, format_: Format, folder: Path, shape: Shape) -> None:
        self._format, self._folder, self._shape = format_, folder, shape
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._shared: Store | None = None
        self._own = threading.local()
        self._opened: list[Store] = []

    def __call__(self, indices: Indices) -> Rows:
        return self._store().read(indices)

    def _store(self) -> Store:
        store: Store | None = self._shared or getattr(self._own, "store", None)
        if store is not None:
            return store
        with self._lock:
            if self._shared is None:
                store = OPEN[self._format](self._folder, self._shape)
                self._opened.append(store)
                if store.is_shareable:
                    self._shared = store
                else:
                    self._own.store = store
        return self._shared or self._own.store

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"format": self._format, "folder": self._folder, "shape": self._shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._format, self._folder, self._shape = state["format"], state["folder"], state["shape"]
        self._begin()


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
