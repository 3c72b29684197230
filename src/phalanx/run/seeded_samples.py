"""Random numbers of a data set that belong to the sample, not to the rank that reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from phalanx.data.hashing import hash_seed
from phalanx.run.randomness import generators_kept, seed_generators


class SeededDataset(Dataset[Any]):
    """A data set of batches, whose samples are read with generators seeded by (seed, sample): those
    of Python, NumPy and PyTorch. Also in a worker of `DataLoader`, which collates by `as_it_is`.

    Cost: some 40 µs a sample.
    """

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], seed: int
    ) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the samples of a batch, put together."""
        with generators_kept():
            return self._collate(self._samples(indices))

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        whole: Any = getattr(self._dataset, "__getitems__", None)
        if whole is not None:  # which draws for all of them: a batch is the same on any rank
            seed_generators(hash_seed(self._seed, indices[0]))
            samples: list[Any] = whole(indices)
            return samples
        samples = []
        for index in indices:
            seed_generators(hash_seed(self._seed, index))
            samples.append(self._dataset[index])
        return samples


def as_it_is(batch: Any) -> Any:
    """Return a batch that is put together already."""
    return batch
