"""Batch reads for readers of any kind; each process, and if needed each thread, opens the data."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from phalanx.bench.io.formats.known import OPEN
from phalanx.bench.io.formats.store import Indices, Rows, Shape, Store
from phalanx.records.io import Format


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
