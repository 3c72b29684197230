"""Arrays of a Zarr store, a folder or a zip file, of version 2 or 3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.origin import OriginOptions, fingerprint_of
from phalanx.data.packing.rows_origin import (
    INPUTS,
    RowArray,
    RowFile,
    RowsOrigin,
    check_numbers,
    choose_fields,
)
from phalanx.errors import UserError

_ERRORS = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError, MemoryError),
    *(AttributeError, SystemError, ArithmeticError),
)


class ZarrStore(RowsOrigin):
    """Arrays of equally many rows. Values are scaled where the attributes say so (`scale_factor`,
    `add_offset`), as xarray writes them."""

    def __init__(self, path: Path, options: OriginOptions) -> None:
        """Raises: UserError when the store is damaged, or arrays are missing, no numbers, or
        pickled."""
        super().__init__()
        self._store = _opened_store(path)
        try:
            arrays = _arrays(path, self._store)
            rows = {name: array.shape[0] for name, array in arrays.items() if array.shape}
            coordinates = [name for name in rows if _is_coordinate(name, arrays[name])]
            fields = choose_fields(path, rows, coordinates, options, kind="array")
            chosen = {field: _row_array(path, name, arrays[name]) for field, name in fields.items()}
            self._arrange([RowFile(path, chosen)], options)
            if path.is_dir():
                self.fingerprint = fingerprint_of(sorted(p for p in path.rglob("*") if p.is_file()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._store.close()


def _opened_store(path: Path) -> Any:
    from zarr.storage import LocalStore, ZipStore  # optional dependency

    try:
        return LocalStore(path, read_only=True) if path.is_dir() else ZipStore(path, mode="r")
    except _ERRORS as error:
        raise UserError(f"{path} cannot be read as Zarr: {error}") from error


def _arrays(path: Path, store: Any) -> dict[str, Any]:
    """Return all arrays by name; a store of a single one has `inputs`."""
    import zarr

    try:
        opened = zarr.open(store=store, mode="r")
        if isinstance(opened, zarr.Array):
            return {INPUTS: opened}
        members = opened.members(max_depth=None)
        return {name: item for name, item in members if isinstance(item, zarr.Array)}
    except _ERRORS as error:
        raise UserError(f"{path} cannot be read as Zarr: {error}") from error


def _is_coordinate(name: str, array: Any) -> bool:
    dimensions = getattr(array.metadata, "dimension_names", None)
    dimensions = dimensions or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return list(dimensions) == [name.rsplit("/", 1)[-1]]


def _row_array(path: Path, name: str, array: Any) -> RowArray:
    if "pickle" in json.dumps(array.metadata.to_dict(), default=str):
        raise UserError(f"{path}: {name} is pickled, and reading it could run any program: refused")
    stored = RowArray(name, tuple(array.shape), np.dtype(array.dtype), lambda *_: np.empty(0))
    check_numbers(path, stored)
    read = _reader(path, name, array)
    chunk_rows = int((array.shards or array.chunks)[0])
    dtype = read(0, 1).dtype if array.shape[0] else stored.dtype
    return stored._replace(dtype=dtype, read=read, chunk_rows=chunk_rows)


def _reader(path: Path, name: str, array: Any) -> Callable[[int, int], NDArray[Any]]:
    scale, offset = array.attrs.get("scale_factor"), array.attrs.get("add_offset")
    is_packed = scale is not None or offset is not None
    absent = array.attrs.get("_FillValue", array.fill_value) if is_packed else None

    def read(start: int, stop: int) -> NDArray[Any]:
        try:
            values: NDArray[Any] = np.asarray(array[start:stop])
        except _ERRORS as error:
            raise UserError(
                f"{path} is damaged: {name}, rows {start} to {stop - 1}: {error}"
            ) from error
        if not is_packed:
            return values
        missing = values == absent
        if missing.any():
            row = int(np.argmax(missing.reshape(len(missing), -1).any(axis=1)))
            raise UserError(f"{path}, {name} row {start + row}: it has no value\nfill it in first")
        return values * (1.0 if scale is None else scale) + (0.0 if offset is None else offset)

    return read
