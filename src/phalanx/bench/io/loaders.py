"""Loaders whose readers run across epochs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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


class ReaderDataset:
    """A map-style data set of single samples, collated by PyTorch, or of lists of indices."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __getitem__(self, index: int | list[int]) -> Any:
        import torch

        rows = torch.from_numpy(self._reader(np.atleast_1d(index)))
        return rows if isinstance(index, list) else rows[0]


class TorchLoader:
    """PyTorch's DataLoader over the same shards, with its best options: persistent workers, started
    before the clock and ended by `close`, and the same prefetch depth."""

    def __init__(self, reader: BatchReader, *, readers: int, depth: int, batched: bool) -> None:
        from torch.utils.data import DataLoader  # import torch only if needed

        self._wanted: list[list[int]] = []
        """Batches of the next epoch."""
        how = {"sampler": self._wanted, "batch_size": None} if batched else {
            "batch_sampler": self._wanted
        }  # fmt: skip
        ahead = -(-depth // readers) if readers else None
        self._loader = DataLoader[Any](
            ReaderDataset(reader),  # type: ignore[arg-type]
            num_workers=readers,
            prefetch_factor=ahead,
            persistent_workers=readers > 0,
            multiprocessing_context="forkserver" if readers else None,
            **how,
        )
        self._readers, self._depth = readers, depth
        for _ in self.batches([np.zeros(1, np.int64)] * max(1, readers), depth):
            pass  # every worker has started and opened its data

    def batches(self, wanted: Sequence[Indices], depth: int) -> Iterator[Rows]:
        assert depth == self._depth
        self._wanted[:] = [batch.tolist() for batch in wanted]
        return (batch.numpy() for batch in self._loader)

    def close(self) -> None:
        iterator = getattr(self._loader, "_iterator", None)
        if self._readers and iterator is not None:
            iterator._shutdown_workers()


def open_loader(cell: IoCell, folder: Path, shape: Shape) -> BatchLoader:
    """Start the loader of a cell; its readers run across epochs."""
    reader = BatchReader(cell.format, folder, shape)
    if cell.loader == "phalanx":
        return PhalanxLoader(reader, cell.readers, cell.kind)
    batched = cell.loader == "torch-batched"
    return TorchLoader(reader, readers=cell.readers, depth=cell.depth, batched=batched)
