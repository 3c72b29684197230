"""Data sets of an HDF5 file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.table import BlockTable, Known, Values, fingerprint_of, reading
from phalanx.data.unpacked import check_zlib, is_small
from phalanx.errors import UserError
from phalanx.jobs.cores import check_fits


class Hdf5File(BlockTable):
    """Data sets of equally many rows, read some 64 MB at a time."""

    part_word = "data set"
    usual_inputs = ("inputs", "images", "data", "x", "X")
    usual_targets = ("targets", "labels", "y")
    needs_target = True

    def __init__(self, path: Path) -> None:
        """Raises: UserError when the file is damaged."""
        super().__init__()
        self._path, self._file = path, _opened(path)
        self.text, self.fingerprint = str(path), fingerprint_of([path])
        self._sets: dict[str, Any] = {}
        names: list[str] = []
        with reading(f"{path} is damaged"):
            self._file.visititems(lambda name, item: names.append(name) if _is_set(item) else None)
        self.names = names

    def has(self, name: str) -> bool:
        with reading(f"{self._path} is damaged"):
            return self._file.get(name, getlink=True) is not None and self._find(name) is not None

    def choose(self, options: OriginOptions) -> tuple[list[str], str | None]:
        """Raises: UserError when data sets lie in another file, are not numbers, or do not fit each
        other or the memory."""
        inputs, target = super().choose(options)
        chosen = [*inputs, *([target] if target else [])]
        with reading(f"{self._path} is damaged"):
            sets = {name: self._find(name) for name in chosen}
            for name, item in sets.items():
                self._check(name, item, sets[chosen[0]], chosen[0])
                self.notes += _lost_chunks(name, item)
        rows = sets[chosen[0]].shape[0]
        step = _step([item for name, item in sets.items() if name != target or item.ndim > 2])
        self.blocks = [range(start, min(start + step, rows)) for start in range(0, rows, step)]
        return inputs, target

    def known(self, name: str) -> Known:
        item = self._find(name)
        return Known(item.dtype.newbyteorder("="), item.shape[1:])

    def read_block(self, block: int, names: Sequence[str]) -> Mapping[str, Values]:
        rows, values = self.blocks[block], dict[str, Values]()
        for name in names:
            item = self._find(name)
            place = f"rows {rows.start} to {rows.stop - 1}"
            with reading(f"{self._path} is damaged: {place}"):
                found = item[rows.start : rows.stop]
            missing = np.isin(found, absent_values(dict(item.attrs), item.dtype))
            if missing.any():
                row = int(np.argmax(missing.reshape(len(rows), -1).any(axis=1)))
                raise UserError(
                    f"{self.where(rows.start + row, name)}: it has no value, or a fill value\nfill "
                    "it in first, or pack the samples of a function, my_data.py:samples"
                )
            values[name] = np.ascontiguousarray(found, item.dtype.newbyteorder("="))
        return values

    def where(self, row: int, name: str) -> str:
        return f"{self._path}, {name} row {row}"

    def close(self) -> None:
        self._file.close()

    def _find(self, name: str) -> Any:
        if name not in self._sets:
            self._sets[name] = find_data_set(self._path, self._file, name)
        return self._sets[name]

    def _check(self, name: str, item: Any, first: Any, of_first: str) -> None:
        """Raises: UserError when a data set has no rows of numbers, other rows than the first, or
        rows that do not fit into memory."""
        if item.dtype.kind not in "biuf" or not item.shape:
            raise UserError(
                f"{self._path}: {name} is {item.dtype} of {item.shape}, not rows of numbers"
            )
        if item.shape[0] != first.shape[0]:
            raise UserError(
                f"{self._path}: {of_first} has {first.shape[0]} rows, {name} {item.shape[0]}"
            )
        if not item.shape[0]:
            raise UserError(f"{self._path}: {name} has no rows")
        check_fits(4 * _row_bytes(item), f"{self._path}: a row of {name} is {item.shape[1:]}")
        rows = min(item.shape[0], _rows_together(item))
        check_fits(2 * rows * _row_bytes(item), f"{self._path}: a chunk of {name}, {rows:,} rows")


CHUNK_BYTES = 64 * 2**20
MAX_CHUNKS = 8
"""Most chunks of `CHUNK_BYTES` that rows which the file stores together take at once."""


def _step(items: Sequence[Any]) -> int:
    """Return how many rows are read together: whole chunks of the file where that can be."""
    row_bytes = max(1, sum(map(_row_bytes, items)))
    step = max(1, CHUNK_BYTES // row_bytes)
    together = max(map(_rows_together, items), default=1)
    if step > together:
        return step - step % together
    # A part of a chunk costs as much as all.
    return together if together * row_bytes <= MAX_CHUNKS * CHUNK_BYTES else step


def _rows_together(item: Any) -> int:
    return int(item.chunks[0]) if item.chunks else 1


def _row_bytes(item: Any) -> int:
    return int(np.prod(item.shape[1:], dtype=object)) * int(item.dtype.itemsize)


def absent_values(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values that stand for none, by the attributes of a data set of `dtype` that NetCDF
    (HDF5 inside) names them in."""
    marks = [attributes.get(name) for name in ("_FillValue", "missing_value")]
    values = [v for mark in marks if mark is not None for v in np.atleast_1d(mark).tolist()]
    found = np.array([value for value in values if isinstance(value, int | float)])
    return found.astype(dtype) if dtype.kind == "f" else found


def _opened(path: Path) -> Any:
    import h5py  # optional dependency

    with reading(f"{path} cannot be read as HDF5"):
        return h5py.File(path, "r")


def _is_set(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape")


def find_data_set(path: Path, file: Any, name: str) -> Any:
    """Return a data set of an open file; None when there is none of that name.

    Raises: UserError for a link, a virtual data set, or data that lie in another file: whoever
            made the file could have any file of this user's packed.
    """
    import h5py

    place = ""
    for step in filter(None, name.split("/")):  # each by itself: no link is followed unseen
        place = f"{place}/{step}"
        link = file.get(place, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            raise UserError(
                f"{path} is refused: {place} is a link to {link.path}\nuse that data set"
            )
        if not isinstance(link, h5py.HardLink):
            raise UserError(_refusal(path, name, getattr(link, "filename", "something outside")))
    item = file[place or "/"]
    if not _is_set(item):
        return None
    if item.external:
        raise UserError(_refusal(path, name, item.external[0][0]))
    if item.is_virtual:
        raise UserError(
            f"{path} is refused: {name} is virtual, made of {item.virtual_sources()[0].file_name}, "
            f"{item.virtual_sources()[0].dset_name}\ncopy its data into a separate data set"
        )
    check_chunks(path, name, item)
    return item


def check_chunks(path: Path, name: str, item: Any) -> None:
    """Raises: UserError when a chunk that gzip packed unpacks to more than is plausible: the HDF5
    library makes room for all of it, whatever size the data set has."""
    if item.chunks is None or item.compression != "gzip":
        return

    def check(info: Any) -> None:
        if not is_small(info.size):
            _, content = item.id.read_direct_chunk(info.chunk_offset)
            check_zlib(content, f"{path}: {name}, chunk at {info.chunk_offset}")

    item.id.chunk_iter(check)


def _lost_chunks(name: str, item: Any) -> list[str]:
    """Return the sentence about chunks that are not in the file, if any."""
    if item.chunks is None:
        return []
    pairs = zip(item.shape, item.chunks, strict=True)
    expected, found = math.prod(-(-n // step) for n, step in pairs), item.id.get_num_chunks()
    if found >= expected:
        return []
    return [
        f"{name}: {expected - found:,} of {expected:,} chunks are missing, and are packed as "
        f"{item.fillvalue}"
    ]


def _refusal(path: Path, name: str, other: object) -> str:
    return (
        f"{path} is refused: {name} lies in another file, {other}\nuse that file as the source, or "
        "copy its data into this one"
    )
