"""Samples of packs, of NumPy arrays and of Arrow tables, as tensors."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.columns import TEXT, column_array, is_index
from phalanx.data.packed.index import INDEX
from phalanx.data.packed.index_file import has_index, splits_of
from phalanx.data.packed.pack import Pack
from phalanx.data.reading.prefetch import prefetched
from phalanx.errors import UserError

Parts = Mapping[str, Any]

INPUTS, TARGETS = "inputs", "targets"


def as_batch(parts: Parts) -> Any:
    """Return the fields of a pack as a batch: (inputs, targets) or inputs where these are all,
    else a dictionary."""
    if parts.keys() == {INPUTS, TARGETS}:
        return parts[INPUTS], parts[TARGETS]
    return parts[INPUTS] if parts.keys() == {INPUTS} else dict(parts)


class NamedTensorSamples:
    """Rows of tensors that have names. A batch is a dictionary."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = {name: len(tensor) for name, tensor in tensors.items()}
        if len({*lengths.values()}) != 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UserError(f"data: the parts have different lengths: {listed or 'there are none'}")
        self._tensors = dict(tensors)

    def __len__(self) -> int:
        return len(next(iter(self._tensors.values())))

    def batches(self, indices: Sequence[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`."""
        for chosen in indices:
            yield {name: part.index_select(0, chosen) for name, part in self._tensors.items()}


LOADING = ("num_workers", "prefetch_factor", "collate_fn")


class PackSamples:
    """Samples of one split of a pack, checked as they are read, in the dtypes of its fields.

    Images that were packed as files are decoded, uint8 of (channels, height, width).
    """

    def __init__(self, pack: Pack, loading: Mapping[str, Any]) -> None:
        """loading: num_workers, threads that read ahead (0: none); prefetch_factor, batches that
        each reads ahead (2); collate_fn, a function of a list of samples, each as `as_batch` says,
        for samples that differ in shape.

        Raises: UserError when its samples make no batch.
        """
        if unknown := [name for name in loading if name not in LOADING]:
            raise UserError(
                f"loading={{{unknown[0]!r}: …}}: a pack is read by {', '.join(LOADING)} alone"
            )
        self._pack, self._collate = pack, loading.get("collate_fn")
        self._num_workers = loading.get("num_workers") or 0
        self._depth = self._num_workers * (loading.get("prefetch_factor") or 2)
        for field in self._pack.index.fields:
            if field.shape is None and self._collate is None:
                raise UserError(
                    f"{pack.folder}: the samples differ in the shape of {field.name}, and make no "
                    'batch: pack images with --size, or give loading={"collate_fn": …}, a '
                    "function of a list of samples"
                )

    def __len__(self) -> int:
        return self._pack.num_samples

    @property
    def fingerprint(self) -> str:
        """Hash of the pack's index, and so of all its bytes."""
        return hashlib.sha256((self._pack.folder / INDEX).read_bytes()).hexdigest()[:16]

    def batches(self, indices: Sequence[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`.

        Raises: DamagedError, a UserError, for samples that are not what was packed.
        """
        rows = (chosen.numpy() for chosen in indices)
        return prefetched(self._read, rows, readers=self._num_workers, depth=max(1, self._depth))

    def _read(self, indices: NDArray[np.int64]) -> Any:
        if self._collate is None:
            return read_batch(self._pack, indices)
        return self._collate(read_list(self._pack, indices))


def read_batch(pack: Pack, indices: NDArray[np.int64]) -> Any:
    """Return samples of a pack as a batch. indices: (n,)."""
    return as_batch({name: torch.from_numpy(pack.read(name, indices)) for name in pack.fields})


def read_list(pack: Pack, indices: NDArray[np.int64]) -> list[Any]:
    """Return samples of a pack one by one. indices: (n,)."""
    parts = {name: pack.read_each(name, indices) for name in pack.fields}
    return [
        as_batch({name: torch.as_tensor(values[row]) for name, values in parts.items()})
        for row in range(len(indices))
    ]


def pack_samples(path: Path, loading: Mapping[str, Any], split: str) -> PackSamples:
    """Return the samples of a pack, or of the split of one that `path` is.

    split: the one that is taken of a pack.
    Raises: UserError when there is no such pack or split.
    """
    if not path.is_dir():
        raise UserError(
            f"data={str(path)!r}: there is no such folder; `phalanx data pack` makes one"
        )
    splits = splits_of(path)
    if has_index(path) or not splits:
        return PackSamples(Pack(path), loading)
    if split not in splits:
        raise UserError(f"{path} has no samples for {split}, only for {', '.join(splits)}")
    return PackSamples(Pack(path / split), loading)


def as_tensor(array: NDArray[Any], name: str = "") -> Tensor:
    """Return a NumPy array as a tensor, to be read alone: of the same memory where that can be, be
    it a map of a file. Unsigned numbers of more than a byte, of which PyTorch makes no batches,
    become signed ones that hold them.

    Raises: UserError when PyTorch has no dtype for it.
    """
    what = f"data: {name or 'an array'}"
    if not array.ndim:
        raise UserError(f"{what} is a single number: its rows are the samples")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(step < 0 for step in native.strides):
        native = native.copy()
    if native.dtype.kind == "u" and native.itemsize > 1:
        if native.size and int(native.max()) >= 2**63:
            raise UserError(f"{what} holds {native.max()}, which int64 does not")
        native = native.astype(np.int32 if native.itemsize == 2 else np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        try:
            return torch.from_numpy(native)
        except TypeError as error:
            raise UserError(f"{what} is of {array.dtype}, which no tensor holds") from error


def named_samples(parts: Mapping[str, Any]) -> NamedTensorSamples:
    """Return the rows of tensors or arrays that have names.

    Raises: UserError naming the part that is neither.
    """
    tensors = {}
    for name, part in parts.items():
        if not isinstance(part, Tensor | np.ndarray):
            raise UserError(
                f"data: {name!r} is of type {type(part).__name__}: give tensors or arrays"
            )
        tensors[name] = part if isinstance(part, Tensor) else as_tensor(part, repr(name))
    return NamedTensorSamples(tensors)


def is_table(data: object) -> bool:
    """Return whether `data` is a table of Arrow, or of a library that gives it as one (pandas,
    polars, DuckDB)."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def table_samples(data: Any) -> NamedTensorSamples:
    """Return the rows of a table, each column a part: numbers, or lists of equal length. An index
    that pandas wrote is no part.

    Raises: UserError naming the column that is no tensor, and the row where a value is missing.
    """
    import pyarrow as pa

    table = pa.table(data)
    names = [name for name in table.column_names if not is_index(name)]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"data: the table has two columns {twice!r}")
    return NamedTensorSamples(
        {name: _column(table.column(name), f"column {name!r} of the table") for name in names}
    )


def _column(column: Any, title: str) -> Tensor:
    array = column_array(column, f"data: {title}")
    if array.dtype == TEXT:
        raise UserError(f"data: {title} holds {column.type}, not numbers: leave it out")
    return as_tensor(array, title)
