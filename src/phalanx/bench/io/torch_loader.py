"""PyTorch's DataLoader over the same shards, given the best that its options offer: workers that
stay, started before the clock, and as many batches ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from phalanx.bench.io.batch_reader import BatchReader
from phalanx.bench.io.formats.store import Indices, Rows


class SampleDataset(Dataset[Tensor]):
    """As data sets are usually written: a sample at a time, put together by PyTorch."""

    def __init__(self, fetch: BatchReader) -> None:
        self._fetch = fetch

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self._fetch(np.array([index]))[0])


class BatchDataset(Dataset[Tensor]):
    """A whole batch at a time: the sampler hands out lists of samples."""

    def __init__(self, fetch: BatchReader) -> None:
        self._fetch = fetch

    def __getitem__(self, indices: list[int]) -> Tensor:
        return torch.from_numpy(self._fetch(np.array(indices, np.int64)))


class EpochBatchSampler(Sampler[list[int]]):
    """The batches of the epoch that comes next."""

    def __init__(self) -> None:
        self.batches: Sequence[Indices] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class TorchLoader:
    """Workers are ended by `close`."""

    def __init__(self, fetch: BatchReader, *, readers: int, depth: int, batched: bool) -> None:
        self._sampler = EpochBatchSampler()
        how = {"sampler": self._sampler, "batch_size": None} if batched else {
            "batch_sampler": self._sampler
        }  # fmt: skip
        ahead = -(-depth // readers) if readers else None
        self._loader: DataLoader[Tensor] = DataLoader(
            (BatchDataset if batched else SampleDataset)(fetch),
            num_workers=readers,
            prefetch_factor=ahead,
            persistent_workers=readers > 0,
            multiprocessing_context="forkserver" if readers else None,
            **how,
        )
        self._readers, self._depth = readers, depth
        for _ in self.batches([np.zeros(1, np.int64)] * max(1, readers), depth):
            pass  # every worker is up, and its data open

    def batches(self, wanted: Sequence[Indices], depth: int) -> Iterator[Rows]:
        assert depth == self._depth
        self._sampler.batches = wanted
        return (batch.numpy() for batch in self._loader)

    def close(self) -> None:
        iterator = getattr(self._loader, "_iterator", None)
        if self._readers and iterator is not None:
            iterator._shutdown_workers()
