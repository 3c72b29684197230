"""Samples by number, as batches of tensors: of tensors and arrays, tables, data sets and packs."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.columns import TEXT, column_array, column_dtype, is_index
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


@runtime_checkable
class Samples(Protocol):
    """Data of known length, read by number: whatever can be trained on in an order of the run's."""

    def __len__(self) -> int: ...

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`, (n,) int64, put together as a batch. Indices are
        taken as far ahead as samples are read."""


class PartialBatch(NamedTuple):
    """A batch that may have fewer samples than were asked for: damaged ones were left out."""

    data: Any
    num_samples: int
    """0: a padding one is there."""
    num_damaged: int


class TensorSamples:
    """Rows of tensors of equal length. A batch is one tensor, a tuple of them, or where they have
    names a dictionary."""

    def __init__(
        self, tensors: Sequence[Tensor] | Mapping[str, Tensor], *, is_single: bool = False
    ) -> None:
        self._names = list(tensors) if isinstance(tensors, Mapping) else None
        self._tensors = [*(tensors.values() if isinstance(tensors, Mapping) else tensors)]
        self._is_single = is_single
        if not all(tensor.dim() for tensor in self._tensors):
            raise UserError("data has a tensor without dimensions: give one row per sample")
        lengths = [len(tensor) for tensor in self._tensors]
        if len({*lengths}) != 1:
            raise UserError(_differing(lengths, self._names))

    def __len__(self) -> int:
        return len(self._tensors[0])

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`."""
        for chosen in indices:
            # Not `tensor[chosen]`: that takes more than twice as long for the same bytes.
            rows = tuple(tensor.index_select(0, chosen) for tensor in self._tensors)
            if self._names is not None:
                yield dict(zip(self._names, rows, strict=True))
            else:
                yield rows[0] if self._is_single else rows


def _differing(lengths: Sequence[int], names: Sequence[str] | None) -> str:
    if names is not None:
        listed = ", ".join(f"{n} {length}" for n, length in zip(names, lengths, strict=True))
        return f"data: the parts have different lengths: {listed or 'there are none'}"
    shown = [*map(str, lengths[:5]), *["…"] * (len(lengths) > 5)]
    return (
        f"data: the tensors have different lengths: {', '.join(shown)}; if each is a sample, give "
        'a list of them and loading={"collate_fn": …}, or a DataLoader'
    )


LOADING = ("num_workers", "prefetch_factor", "collate_fn")


class ReadSamples(ABC):
    """Samples that threads read ahead."""

    def __init__(self, loading: Mapping[str, Any], what: str) -> None:
        """loading: num_workers, threads that read ahead (0: none); prefetch_factor, batches that
        each reads ahead (2); collate_fn, a function of a list of samples. what: is read, for
        messages."""
        if unknown := [name for name in loading if name not in LOADING]:
            raise UserError(
                f"loading={{{unknown[0]!r}: …}}: {what} is read only by {', '.join(LOADING)}"
            )
        self._collate = loading.get("collate_fn")
        self._num_workers = loading.get("num_workers") or 0
        self._depth = self._num_workers * (loading.get("prefetch_factor") or 2)

    @abstractmethod
    def read(self, indices: NDArray[np.int64]) -> Any:
        """Return samples as a batch. indices: (n,)."""

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Yield the samples of each of `indices`."""
        rows = (chosen.numpy() for chosen in indices)
        return prefetched(self.read, rows, readers=self._num_workers, depth=max(1, self._depth))


class PackSamples(ReadSamples):
    """Samples of one split of a pack, checked as they are read, in the dtypes of its fields.

    Images that were packed as files are decoded, uint8 of (channels, height, width). Where they
    differ in shape, `collate_fn` gets a list of samples, each as `as_batch` says.
    """

    def __init__(self, pack: Pack, loading: Mapping[str, Any]) -> None:
        """Raises: UserError when its samples make no batch."""
        super().__init__(loading, "a pack")
        self._pack = pack
        for field in self._pack.index.fields:
            if field.shape is None and self._collate is None:
                raise UserError(
                    f"{pack.folder}: the samples differ in the shape of {field.name}, so they "
                    'cannot form a batch: pack images with --size, or give loading={"collate_fn": '
                    "…}, a function of a list of samples"
                )

    def __len__(self) -> int:
        return self._pack.num_samples

    @property
    def fingerprint(self) -> str:
        """Hash of the pack's index, and so of all its bytes."""
        return hashlib.sha256((self._pack.folder / INDEX).read_bytes()).hexdigest()[:16]

    def read(self, indices: NDArray[np.int64]) -> Any:
        """Return samples as a batch. indices: (n,).

        Raises: DamagedError, a UserError, for samples that are not what was packed.
        """
        pack, parts = self._pack, dict[str, Any]()
        if self._collate is None:
            parts = {name: torch.from_numpy(pack.read(name, indices)) for name in pack.fields}
            return as_batch(parts)
        parts = {name: pack.read_each(name, indices) for name in pack.fields}
        return self._collate(
            [
                as_batch({name: torch.as_tensor(values[row]) for name, values in parts.items()})
                for row in range(len(indices))
            ]
        )


class DatasetColumns(ReadSamples):
    """Rows of a `datasets.Dataset` of Hugging Face, each column a part: numbers, or lists of equal
    length. Rows are read from its files when they are needed."""

    def __init__(self, dataset: Any, loading: Mapping[str, Any]) -> None:
        """Raises: UserError naming the column that is no tensor."""
        super().__init__(loading, "a data set of Hugging Face")
        names = [name for name in dataset.column_names if not is_index(name)]
        self._rows = dataset.with_format("arrow").select_columns(names)
        schema = dataset.features.arrow_schema
        for name in names:
            title = f"data: column {name!r} of the data set"
            try:
                is_text = column_dtype(schema.field(name).type, title) == TEXT
            except UserError as error:
                raise UserError(f"{error}\n{_OWN_WAY}") from None
            if is_text:
                raise UserError(f"{title} holds text, not numbers: leave it out\n{_OWN_WAY}")

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: NDArray[np.int64]) -> Any:
        """Return samples as a batch. indices: (n,)."""
        table = self._rows[indices.tolist()]
        return _columns(table, table.column_names, "the data set")


_OWN_WAY = (
    'or give the data set a format or transform, or loading={"collate_fn": …}, a function of a '
    "list of rows"
)


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


def named_samples(parts: Mapping[str, Any]) -> TensorSamples:
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
    return TensorSamples(tensors)


def is_table(data: object) -> bool:
    """Return whether `data` is a table of Arrow, or of a library that gives it as one (pandas,
    polars, DuckDB)."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def table_samples(data: Any) -> TensorSamples:
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
    return TensorSamples(_columns(table, names, "the table"))


def _columns(table: Any, names: Iterable[str], of: str) -> dict[str, Tensor]:
    tensors = {}
    for name in names:
        column, title = table.column(name), f"column {name!r} of {of}"
        array = column_array(column, f"data: {title}")
        if array.dtype == TEXT:
            raise UserError(f"data: {title} holds {column.type}, not numbers: leave it out")
        tensors[name] = as_tensor(array, title)
    return tensors
