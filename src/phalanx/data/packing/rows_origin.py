"""Origins of arrays whose rows are samples, in files that are read a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packed.shard_writers import Rows
from phalanx.data.packing.origin import (
    Numbers,
    Origin,
    OriginOptions,
    fingerprint_of,
    runs_by_chunk,
    targets_field,
)
from phalanx.data.packing.targets import TargetLocations, labelled
from phalanx.errors import UserError
from phalanx.launch.cores import check_fits

INPUTS, TARGETS = "inputs", "targets"

CHUNK_BYTES = 64 * 2**20
MAX_CHUNKS = 8
"""Of `CHUNK_BYTES`, that rows which the file stores together may take at once."""
BYTES_OF_A_SAMPLE = 40
"""Bytes of memory per sample while packing: its target, and its position in the order."""


class RowArray(NamedTuple):
    """An array in a file."""

    name: str
    shape: tuple[int, ...]
    """Rows first."""
    dtype: np.dtype[Any]
    read: Callable[[int, int], NDArray[Any]]
    """Of rows [start, stop). Raises UserError naming the file and the rows."""
    chunk_rows: int = 1
    """Rows that the file stores together."""


class RowFile(NamedTuple):
    path: Path
    arrays: Mapping[str, RowArray]
    """By field; all of equally many rows."""


class RowsOrigin(Origin):
    """Rows of one file, or of several one after the other."""

    def _arrange(self, files: Sequence[RowFile], options: OriginOptions) -> None:
        """Set everything that an origin has.

        Raises: UserError when arrays do not fit each other or the memory, or are not numbers.
        """
        self._files = list(files)
        first = files[0].arrays
        for file in files:
            _check_rows(file)
            _check_alike(file, files[0])
        counts = [len_of(file) for file in files]
        ends = np.cumsum(counts).tolist()
        self._starts = [end - count for end, count in zip(ends, counts, strict=True)]
        names = " and ".join(array.name for array in first.values())
        paths = [*dict.fromkeys(file.path for file in files)]
        self.text = f"{paths[0] if len(paths) == 1 else paths[0].parent}, {names}"
        self.fingerprint = fingerprint_of(paths)
        self._targets, self.classes = self._labels(options)
        self._blocks = [
            (number, rows) for number, file in enumerate(files) for rows in _blocks(file)
        ]
        self.chunks = [
            range(self._starts[n] + rows.start, self._starts[n] + rows.stop)
            for n, rows in self._blocks
        ]
        self.fields = [
            targets_field(self._targets)
            if name == TARGETS and self._targets is not None
            else Field(name=name, dtype=_native(array.dtype).name, shape=list(array.shape[1:]))
            for name, array in first.items()
        ]

    def read(self, numbers: Numbers) -> Rows:
        parts = []
        for chunk, chosen in runs_by_chunk(self.chunks, numbers):
            content, rows = self._content(chunk), chosen - self.chunks[chunk].start
            parts.append({name: values[rows] for name, values in content.items()})
        read = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return read if self._targets is None else {**read, TARGETS: self._targets[numbers]}

    _kept: tuple[int, dict[str, NDArray[Any]]] = (-1, {})

    def _content(self, chunk: int) -> dict[str, NDArray[Any]]:
        if self._kept[0] != chunk:
            self._kept = (-1, {})  # not two of them at once
            number, rows = self._blocks[chunk]
            self._kept = (
                chunk,
                {
                    name: _contiguous(array.read(rows.start, rows.stop))
                    for name, array in self._files[number].arrays.items()
                    if name != TARGETS or self._targets is None
                },
            )
        return self._kept[1]

    def _labels(self, options: OriginOptions) -> tuple[NDArray[Any] | None, list[str]]:
        """Return targets that are held in memory, and the names of their classes."""
        first = self._files[0].arrays.get(TARGETS)
        if first is None or not _is_label(first):
            return None, []
        check_fits(
            sum(_memory_of_targets(file) for file in self._files),
            f"{self._files[0].path}: {first.name} has {first.shape[0]:,} rows",
        )
        values = np.concatenate(
            [file.arrays[TARGETS].read(0, len_of(file)) for file in self._files]
        )
        locations = TargetLocations(
            f"{self._files[0].path}, {first.name}", lambda i: f"{self._where(i)}"
        )
        return labelled(values, locations, options.classes)

    def _where(self, number: int) -> str:
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        path, arrays = self._files[file]
        return f"{path}, {arrays[TARGETS].name} row {number - self._starts[file]}"


def len_of(file: RowFile) -> int:
    """Return the number of rows of a file."""
    return next(iter(file.arrays.values())).shape[0]


def fields_of(inputs: Sequence[str], target: str | None) -> dict[str, str]:
    """Return the array of each field: one input is `inputs`, several have names of their own, in
    which `/` becomes `_`; the target is `targets`."""
    fields = {INPUTS: inputs[0]} if len(inputs) == 1 else {n.replace("/", "_"): n for n in inputs}
    return fields if target is None else {**fields, TARGETS: target}


def check_numbers(path: Path, array: RowArray) -> RowArray:
    """Return `array`.

    Raises: UserError when it has no rows, or not of numbers, or those that are stored together do
            not fit into memory.
    """
    if array.dtype.kind not in "biuf" or not array.shape:
        raise UserError(
            f"{path}: {array.name} is {array.dtype} of {array.shape}, not rows of numbers"
        )
    check_fits(4 * _row_bytes(array), f"{path}: a row of {array.name} is {array.shape[1:]}")
    together = min(array.shape[0], max(1, array.chunk_rows))
    check_fits(
        2 * together * _row_bytes(array), f"{path}: a chunk of {array.name}, {together:,} rows"
    )
    return array


def _check_rows(file: RowFile) -> None:
    path, arrays = file
    first = next(iter(arrays.values()))
    for array in arrays.values():
        if array.shape[0] != first.shape[0]:
            raise UserError(
                f"{path}: {first.name} has {first.shape[0]} rows, {array.name} {array.shape[0]}"
            )
    if first.shape[0] < 1:
        names = " and ".join(dict.fromkeys(array.name for array in arrays.values()))
        raise UserError(f"{path}: {names} have no rows")


def _check_alike(file: RowFile, first: RowFile) -> None:
    for name, array in file.arrays.items():
        other = first.arrays[name]
        if (array.shape[1:], _native(array.dtype)) != (other.shape[1:], _native(other.dtype)):
            raise UserError(
                f"{file.path}: {array.name} is {array.dtype} of {array.shape[1:]}, and "
                f"{other.dtype} of {other.shape[1:]} in {first.path.name}"
            )


def _is_label(target: RowArray) -> bool:
    """Return whether targets are single numbers or lists of them, and are held in memory; others
    are packed as they are."""
    return len(target.shape) <= 2


def _memory_of_targets(file: RowFile) -> int:
    target = file.arrays[TARGETS]
    return target.shape[0] * (2 * _row_bytes(target) + BYTES_OF_A_SAMPLE)


def _row_bytes(array: RowArray) -> int:
    return int(np.prod(array.shape[1:], dtype=object)) * array.dtype.itemsize


def _blocks(file: RowFile) -> list[range]:
    """Return rows to read together: some 64 MB, and whole chunks of the file where that can be."""
    arrays = [a for name, a in file.arrays.items() if name != TARGETS or not _is_label(a)]
    row_bytes = max(1, sum(map(_row_bytes, arrays)))
    step = max(1, CHUNK_BYTES // row_bytes)
    together = max((array.chunk_rows for array in arrays), default=1)
    if step > together:
        step -= step % together
    elif together * row_bytes <= MAX_CHUNKS * CHUNK_BYTES:
        step = together  # a part of them costs as much as all
    num_rows = len_of(file)
    return [range(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


def _contiguous(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values, _native(values.dtype))
