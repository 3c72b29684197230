"""Sources of samples to pack, in the formats of others."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Rows, Sample
from phalanx.errors import UserError
from phalanx.records.configuration import check_at_least

Numbers = NDArray[np.int64]
Kind = Literal[
    "images", "idx", "csv", "jsonl", "parquet", "hdf5", "tar", "tfrecord", "lmdb", "function",
]  # fmt: skip


class Origin(ABC):
    """Samples to pack, by number."""

    text: str
    """What it is and where, for people."""
    fingerprint: str
    """Differs when the data does, as far as names, sizes and times tell."""
    fields: list[Field]
    classes: list[str]
    chunks: list[range]
    """Samples that are best read together; one where any sample is as good as the next."""
    validation: Numbers | None = None
    """The samples that the data itself sets aside; None where it says nothing."""
    skipped: list[SkippedItems]
    """What is in the source and is not packed."""
    max_sample_bytes: int = 0
    """Of the largest sample, where samples differ in size; 0: not known."""
    notes: list[str]
    """What is packed otherwise than it was, a line each."""

    def __init__(self) -> None:
        self.skipped, self.notes = [], []

    @abstractmethod
    def read(self, numbers: Numbers) -> Rows | list[Sample]:
        """Samples by number, of one chunk wherever possible.

        Raises: UserError naming the file, and the sample, row or column that cannot be read.
        """

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Options for reading an origin. Parts are columns of a table, data sets of an HDF5 file,
    features of a record, endings of a tar's members."""

    kind: Kind | None = None
    """None: by looking at the files."""
    inputs: tuple[str, ...] = ()
    """Parts that are inputs; none: all but the target."""
    target: str | None = None
    decode: bool = False
    """Images become arrays; else their files are kept as they are."""
    size: tuple[int, int] | None = None
    """(height, width) that images are brought to, which decodes them."""
    classes: int | None = None
    """How many the target has; 0: none, it is a quantity; None: as many as there are."""
    separator: str | None = None
    """Of the values in a row of a CSV; None: what gives its header most names."""
    decimal: Literal[".", ","] = "."
    """Sets off the decimals of numbers in a CSV."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "classes")
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise UserError(
                f"--separator takes one character, or \\t for a tab, not {self.separator!r}"
            )


class ArraysOrigin(Origin):
    """Samples that are in memory."""

    def __init__(
        self,
        text: str,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        *,
        classes: Sequence[str],
        fingerprint: str,
        num_train: int | None = None,
    ) -> None:
        """inputs, targets: (n, …). num_train: the rest of the samples is for validation."""
        super().__init__()
        self.text, self.classes, self.fingerprint = text, list(classes), fingerprint
        self._rows = {"inputs": inputs, "targets": targets}
        self.fields = [
            Field(name=name, dtype=part.dtype.name, shape=list(part.shape[1:]))
            for name, part in self._rows.items()
        ]
        self.chunks = [range(len(inputs))]
        self.validation = None if num_train is None else np.arange(num_train, len(inputs))

    def read(self, numbers: Numbers) -> Rows:
        return {name: part[numbers] for name, part in self._rows.items()}

    def close(self) -> None:
        """Nothing is open."""


def targets_field(targets: NDArray[Any]) -> Field:
    return Field(name="targets", dtype=targets.dtype.name, shape=list(targets.shape[1:]))


def fingerprint_of(files: Iterable[Path]) -> str:
    """Return a hash of names, sizes and modification times; content is not read."""
    digest = hashlib.sha256()
    for file in files:
        state = file.stat()
        digest.update(f"{file.name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


MAX_NAMED = 10


@dataclass
class SkippedItems:
    """Files or members that are not packed, for one reason."""

    reason: str
    names: list[str] = field(default_factory=list)
    """The first ones."""
    count: int = 0

    def add(self, name: object) -> None:
        self.count += 1
        if len(self.names) < MAX_NAMED:
            self.names.append(str(name))

    def __str__(self) -> str:
        more = f" and {self.count - len(self.names):,} more" if self.count > len(self.names) else ""
        return f"{self.count:,} {self.reason}: {', '.join(self.names)}{more}"


def reported(groups: Iterable[SkippedItems]) -> list[SkippedItems]:
    """Return the groups that hold anything."""
    return [group for group in groups if group.count]


def runs_by_chunk(chunks: Sequence[range], numbers: Numbers) -> list[tuple[int, Numbers]]:
    """Return consecutive samples of one chunk, each run with the number of the chunk."""
    of = np.searchsorted([chunk.start for chunk in chunks], numbers, side="right") - 1
    runs = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(of)) + 1)
    return [(int(of[run[0]]), numbers[run]) for run in runs]


class ChunkedOrigin(Origin):
    """Origin with targets in memory, and inputs from the cached chunk."""

    targets: NDArray[Any]

    _kept: tuple[int, Any] = (-1, None)

    def read(self, numbers: Numbers) -> Rows | list[Sample]:
        parts = [self._inputs(*run) for run in runs_by_chunk(self.chunks, numbers)]
        targets = self.targets[numbers]
        if parts and isinstance(parts[0], np.ndarray):
            return {"inputs": np.concatenate(parts), "targets": targets}
        inputs = [item for part in parts for item in part]
        return [{"inputs": item, "targets": targets[i, ...]} for i, item in enumerate(inputs)]

    @abstractmethod
    def read_chunk(self, chunk: int) -> NDArray[Any] | Sequence[Any]:
        """Inputs (n, …) of all its samples, or an object for each, for `pack_item`."""

    def pack_item(self, item: Any, number: int) -> NDArray[Any] | bytes:
        """Convert an object of `read_chunk` to its packed form. number: of the sample."""
        raise NotImplementedError(f"{type(self).__name__} reads arrays")

    def _inputs(self, chunk: int, numbers: Numbers) -> Any:
        if self._kept[0] != chunk:
            self._kept = (-1, None)  # not two of them at once
            self._kept = (chunk, self.read_chunk(chunk))
        content, rows = self._kept[1], numbers - self.chunks[chunk].start
        if isinstance(content, np.ndarray):
            return content[rows]
        return [
            self.pack_item(content[row], number)
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        ]
