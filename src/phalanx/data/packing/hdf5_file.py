"""Data sets of an HDF5 file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.columns import listed
from phalanx.data.packing.missing_values import absent_values, check_present, lost_chunks
from phalanx.data.packing.origin import OriginOptions
from phalanx.data.packing.rows_origin import (
    RowArray,
    RowFile,
    RowsOrigin,
    check_numbers,
    fields_of,
)
from phalanx.data.unpacked import check_zlib, is_small
from phalanx.errors import UserError

_USUAL_INPUTS, _USUAL_TARGETS = ("inputs", "images", "data", "x", "X"), ("targets", "labels", "y")


class Hdf5File(RowsOrigin):
    """Data sets of equally many rows: inputs and a target."""

    def __init__(self, path: Path, options: OriginOptions) -> None:
        """Raises: UserError when a data set is missing, lies in another file, is not numbers, or
        they do not fit each other or the memory."""
        super().__init__()
        self._path, self._file = path, _opened(path)
        with _reading(path):
            names = fields_of(*self._names(options))
            arrays = {field: self._array(name) for field, name in names.items()}
            for name in {*names.values()}:
                self.notes += _lost_chunks(name, find_data_set(path, self._file, name))
            self._arrange([RowFile(path, arrays)], options)

    def close(self) -> None:
        self._file.close()

    def _names(self, options: OriginOptions) -> tuple[Sequence[str], str]:
        there: list[str] = []
        self._file.visititems(lambda name, item: there.append(name) if _is_set(item) else None)
        usual = _first(_USUAL_INPUTS, self._file)
        inputs = options.inputs or (() if usual is None else (usual,))
        target = options.target or _first(_USUAL_TARGETS, self._file)
        if not inputs or target is None:
            raise UserError(
                f"which data sets of {self._path} are wanted? name them with --inputs and "
                f"--target: {listed(there)}"
            )
        return inputs, target

    def _array(self, name: str) -> RowArray:
        item = find_data_set(self._path, self._file, name)
        if item is None:
            raise UserError(f"{self._path} has no data set {name!r}")

        absent = absent_values(dict(item.attrs), item.dtype)

        def read(start: int, stop: int) -> Any:
            with _reading(self._path, f"rows {start} to {stop - 1}: "):
                values = item[start:stop]
            check_present(self._path, name, start, np.isin(values, absent))
            return values

        rows = item.chunks[0] if item.chunks else 1
        return check_numbers(self._path, RowArray(name, item.shape, item.dtype, read, rows))


def _opened(path: Path) -> Any:
    import h5py  # optional dependency

    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} cannot be read as HDF5: {error}") from error


@contextmanager
def _reading(path: Path, where: str = "") -> Iterator[None]:
    """Raises: UserError for what the HDF5 library says of damaged files."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        raise UserError(f"{path} is damaged: {where}{error}") from error


def _is_set(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape")


def _first(usual: tuple[str, ...], file: Any) -> str | None:
    return next((name for name in usual if file.get(name, getlink=True) is not None), None)


MAX_LINKS = 32


def find_data_set(path: Path, file: Any, name: str) -> Any:
    """Return a data set of an open file; None when there is none of that name. Soft links within
    the file are followed.

    Raises: UserError when it lies in another file, which is named, or links lead in a circle.
    """
    return _checked(path, file, name, depth=0)


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


def _lost_chunks(name: str, item: Any) -> Iterable[str]:
    if item.chunks is None:
        return ()
    pairs = zip(item.shape, item.chunks, strict=True)
    expected = math.prod(-(-length // step) for length, step in pairs)
    return lost_chunks(name, item.id.get_num_chunks(), expected, item.fillvalue)


def _checked(path: Path, file: Any, name: str, depth: int) -> Any:
    if depth > MAX_LINKS:
        raise UserError(f"{path}: {name} is made of data sets that are made of each other")
    item = _resolved(path, file, name)
    if item is None or not (hasattr(item, "dtype") and hasattr(item, "shape")):
        return None
    if item.external:
        raise UserError(_refusal(path, name, item.external[0][0]))
    check_chunks(path, name, item)
    if item.is_virtual:
        for source in item.virtual_sources():
            if source.file_name != ".":
                raise UserError(_refusal(path, name, source.file_name))
            if "%" in source.dset_name or _checked(path, file, source.dset_name, depth + 1) is None:
                raise UserError(
                    f"{path}: {name} is made of {source.dset_name!r}, which is not there"
                )
    return item


def _resolved(path: Path, file: Any, name: str) -> Any:
    """Follow each part of the name by itself, so that no link is followed unseen."""
    import h5py

    rest, at, num_links = [part for part in name.split("/") if part], file, 0
    while rest:
        part = rest.pop(0)
        if part == ".":
            continue
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            num_links += 1
            if num_links > MAX_LINKS:
                raise UserError(f"{path}: {name} is a link that leads in a circle")
            rest = [step for step in link.path.split("/") if step] + rest
            at = file if link.path.startswith("/") else at
        elif isinstance(link, h5py.HardLink):
            at = at[part]
        else:
            raise UserError(_refusal(path, name, getattr(link, "filename", "something outside")))
    return at


def _refusal(path: Path, name: str, other: object) -> str:
    return (
        f"{path} is refused: {name} lies in another file, {other}\n"
        "name that file as the source, or copy its data into this one"
    )
