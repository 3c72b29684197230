"""Samples by index, from whatever a program has: tensors, a map-style data set, a pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
)

from phalanx.data.columns import is_dataset
from phalanx.data.packed.pack import Pack
from phalanx.data.samples import (
    DatasetColumns,
    PackSamples,
    Samples,
    TensorSamples,
    as_tensor,
    is_table,
    named_samples,
    pack_samples,
    table_samples,
)
from phalanx.errors import UserError
from phalanx.jobs.worker_environment import worker_environment
from phalanx.run.workers import SeededDataset, as_it_is, in_processes


class DatasetSamples:
    """A map-style `Dataset`, read by PyTorch's own `DataLoader`."""

    def __init__(
        self, dataset: Dataset[Any], loading: dict[str, Any], seed: int | None = None
    ) -> None:
        """seed: of the random numbers of samples; None: whatever the generators hold."""
        self.dataset, self._loading, self._seed = dataset, loading, seed

    @property
    def reads_in_processes(self) -> bool:
        """Return whether workers read the data set."""
        return bool(self._loading.get("num_workers"))

    def seeded(self, seed: int) -> DatasetSamples:
        """Return the same samples, with random numbers of (seed, sample)."""
        return DatasetSamples(self.dataset, self._loading, seed)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        options = in_processes(self._loading)
        chosen, dataset = [rows.tolist() for rows in indices], self.dataset
        if self._seed is not None:
            collate = options.get("collate_fn") or default_collate
            dataset = SeededDataset(dataset, collate, self._seed)
            options["collate_fn"] = as_it_is
        with worker_environment():
            return iter(DataLoader(dataset, batch_sampler=chosen, **options))


def seeded_samples(samples: Samples, seed: int) -> Samples:
    """Return samples whose random numbers are of (seed, sample), where a data set may draw some."""
    if isinstance(samples, ChosenSamples):
        return ChosenSamples(seeded_samples(samples.samples, seed), samples.numbers)
    return samples.seeded(seed) if isinstance(samples, DatasetSamples) else samples


class ChosenSamples:
    """Samples of others, by their numbers."""

    def __init__(self, samples: Samples, numbers: Tensor) -> None:
        self.samples, self.numbers = samples, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        return self.samples.batches(self.numbers[chosen] for chosen in indices)


def samples_of_dataset(dataset: Any, loading: dict[str, Any]) -> Samples:
    """Return the samples of a `DataLoader`'s data set: whatever it is, its items are samples."""
    if isinstance(dataset, IterableDataset | Pack):
        return samples_of(dataset, loading)
    if "collate_fn" not in loading and isinstance(dataset, Tensor | TensorDataset):
        return samples_of(dataset, loading)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UserError(
            f"data is a DataLoader of a {type(dataset).__name__} without __len__ and __getitem__: "
            "give it both, or make it an IterableDataset"
        )
    return DatasetSamples(dataset, loading)


def samples_of(data: object, loading: dict[str, Any], split: str = "train") -> Samples:
    """Return the samples of what a program calls its data.

    loading: arguments of `DataLoader` for a `Dataset` or a pack: num_workers, collate_fn, ….
    split: of a pack that has several.
    Raises: UserError when it is of no known kind.
    """
    match data:
        case ChosenSamples():
            return data
        case Tensor():
            return TensorSamples([data], is_single=True)
        case TensorDataset(tensors=tensors) if "collate_fn" not in loading:
            return TensorSamples(tensors)
        case np.ndarray():
            return TensorSamples([as_tensor(data)], is_single=True)
        case list() if "collate_fn" in loading:
            return DatasetSamples(data, loading)  # type: ignore[arg-type]
        case tuple() | list() if data and all(isinstance(p, Tensor | np.ndarray) for p in data):
            return TensorSamples([p if isinstance(p, Tensor) else as_tensor(p) for p in data])
        case dict() if data and all(isinstance(name, str) for name in data):
            return named_samples(data)
        case Pack():
            return PackSamples(data, loading)
        case str() | PathLike():
            return pack_samples(Path(data), loading, split)
        case _ if is_table(data):
            return table_samples(data)
        case Samples() if not loading:
            return data
        case IterableDataset():
            raise UserError(
                "data is an IterableDataset, which has no length: run.evaluate divides data among "
                "the ranks, and so needs __len__ and __getitem__"
            )
        case _ if is_dataset(data) and "collate_fn" not in loading and _has_no_format(data):
            return DatasetColumns(data, loading)
        case _ if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            return DatasetSamples(data, loading)  # type: ignore[arg-type]
    raise UserError(
        f"data is of type {type(data).__name__}: give tensors or arrays, a tuple of them, a folder "
        "of `phalanx data pack`, or a data set with __len__ and __getitem__"
    )


def _has_no_format(dataset: Any) -> bool:
    """Return whether a data set of Hugging Face gives rows as Python's own numbers and lists."""
    return dataset.format["type"] is None


def first_tensor(batch: object) -> Tensor | None:
    """Return the first tensor in nested tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        return batch
    parts: Sequence[object] = ()
    if isinstance(batch, dict):
        parts = tuple(batch.values())
    elif isinstance(batch, (tuple, list)):
        parts = batch
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)
