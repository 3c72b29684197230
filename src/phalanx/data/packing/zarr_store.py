"""Arrays of a Zarr store, a folder or a zip file, of version 2 or 3."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.missing_values import absent_values, check_present, lost_chunks
from phalanx.data.packing.origin import OriginOptions, fingerprint_of
from phalanx.data.packing.rows_origin import (
    INPUTS,
    RowArray,
    RowFile,
    RowsOrigin,
    check_numbers,
    choose_fields,
)
from phalanx.data.unpacked import check_unpacked
from phalanx.errors import UserError
from phalanx.records.regular_file import check_regular, readable

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
        members = _members(path) if path.is_dir() else []
        self._store = _opened_store(path)
        try:
            arrays = _arrays(path, self._store)
            rows = {name: array.shape[0] for name, array in arrays.items() if array.shape}
            coordinates = [name for name in rows if _is_coordinate(name, arrays[name])]
            fields = choose_fields(path, rows, coordinates, options, kind="array")
            chosen = {field: _row_array(path, name, arrays[name]) for field, name in fields.items()}
            self._arrange([RowFile(path, chosen)], options)
            for name in fields.values():
                self.notes += _lost_chunks(name, arrays[name])
            if members:
                self.fingerprint = fingerprint_of(members)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._store.close()


def _members(path: Path) -> list[Path]:
    """Return the files of a store.

    Raises: UserError for a link, which would have files of others packed, or no regular file.
    """
    found = []
    for folder, folders, names in os.walk(path):
        for member in (Path(folder, name) for name in (*folders, *names)):
            if member.is_symlink():
                raise UserError(
                    f"{path} is refused: {member} is a link, to {member.readlink()}\n"
                    "copy the store with the files in their places, as `cp -rL` does"
                )
        found += [Path(folder, name) for name in names]
    for member in found:
        with readable(member):
            check_regular(member)
    return sorted(found)


def _opened_store(path: Path) -> Any:
    from zarr.storage import LocalStore, ZipStore  # optional dependency

    try:
        if path.is_dir():
            return LocalStore(path, read_only=True)
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                check_unpacked(member.file_size, member.compress_size, f"{path}: {member.filename}")
        return ZipStore(path, mode="r")
    except (*_ERRORS, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as Zarr: {error}") from error


def _arrays(path: Path, store: Any) -> dict[str, Any]:
    """Return all arrays by name; a store of a single one has `inputs`."""
    import zarr

    from phalanx.data.packing.zarr_pipeline import BoundedPipeline

    zarr.registry.register_pipeline(BoundedPipeline)
    pipeline = f"{BoundedPipeline.__module__}.{BoundedPipeline.__qualname__}"
    try:
        with zarr.config.set({"codec_pipeline.path": pipeline}):
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
    read, shape = _reader(path, name, array), tuple(array.shape)
    chunk_rows = int((array.shards or array.chunks)[0]) if shape else 1
    stored = check_numbers(path, RowArray(name, shape, np.dtype(array.dtype), read, chunk_rows))
    return stored._replace(dtype=read(0, 1).dtype) if shape[0] else stored


def _reader(path: Path, name: str, array: Any) -> Callable[[int, int], NDArray[Any]]:
    scale, offset = array.attrs.get("scale_factor"), array.attrs.get("add_offset")
    absent = absent_values(_attributes(array), np.dtype(array.dtype))

    def read(start: int, stop: int) -> NDArray[Any]:
        try:
            values: NDArray[Any] = np.asarray(array[start:stop])
        except UserError as error:
            raise UserError(f"{path}, {name}, rows {start} to {stop - 1}: {error}") from None
        except _ERRORS as error:
            raise UserError(
                f"{path} is damaged: {name}, rows {start} to {stop - 1}: {error}"
            ) from error
        check_present(path, name, start, np.isin(values, absent))
        if scale is None and offset is None:
            return values
        return values * (1.0 if scale is None else scale) + (0.0 if offset is None else offset)

    return read


def _attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of an array. In Zarr 2 xarray takes the fill value for one of them."""
    attributes = dict(array.attrs)
    is_packed = "scale_factor" in attributes or "add_offset" in attributes
    is_xarray = array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes
    if (is_packed or is_xarray) and array.metadata.fill_value is not None:
        attributes.setdefault("_FillValue", array.metadata.fill_value)
    return attributes


def _lost_chunks(name: str, array: Any) -> Iterable[str]:
    return lost_chunks(name, array.nchunks_initialized, array.nchunks, array.fill_value)
