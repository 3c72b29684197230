"""PyTorch's DataLoader over the same shards, with its best options: persistent workers, started
before the clock, and the same prefetch depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from phalanx.bench.io.formats import Indices, Rows
from phalanx.bench.io.loaders import BatchReader


class ReaderDataset(Dataset[Tensor]):
    """A map-style data set of single samples, collated by PyTorch, or of lists of indices."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __getitem__(self, index: int | list[int]) -> Tensor:
        rows = torch.from_numpy(self._reader(np.atleast_1d(index)))
        return rows if isinstance(index, list) else rows[0]


class TorchLoader:
    """A DataLoader with persistent workers, which `close` ends."""

    def __init__(self, reader: BatchReader, *, readers: int, depth: int, batched: bool) -> None:
        self._wanted: list[list[int]] = []
        """Batches of the next epoch."""
        how = {"sampler": self._wanted, "batch_size": None} if batched else {
            "batch_sampler": self._wanted
        }  # fmt: skip
        ahead = -(-depth // readers) if readers else None
        self._loader: DataLoader[Tensor] = DataLoader(
            ReaderDataset(reader),
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
