"""Variables of NetCDF files, of version 4 or classic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.hdf5_file import refuse_other_files
from phalanx.data.packing.missing_values import check_present
from phalanx.data.packing.origin import OriginOptions
from phalanx.data.packing.rows_origin import (
    RowArray,
    RowFile,
    RowsOrigin,
    check_numbers,
    choose_fields,
)
from phalanx.errors import UserError

_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, IndexError, MemoryError)


class NetcdfFiles(RowsOrigin):
    """One file, or all of a folder, joined along the first dimension of their variables. Values are
    unpacked as the attributes say (`scale_factor`, `add_offset`)."""

    def __init__(self, paths: Sequence[Path], options: OriginOptions) -> None:
        """Raises: UserError when a file is damaged, or variables are missing or no numbers."""
        super().__init__()
        self._data_sets: list[Any] = []
        try:
            self._data_sets += map(_opened, paths)
            fields = _fields(paths[0], self._data_sets[0], options)
            files = []
            for path, data_set in zip(paths, self._data_sets, strict=True):
                refuse_other_files(path, fields.values())
                arrays = {f: _array(path, data_set, name) for f, name in fields.items()}
                files.append(RowFile(path, arrays))
            self._arrange(files, options)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._data_sets:
            self._data_sets.pop().close()


def _opened(path: Path) -> Any:
    import netCDF4  # optional dependency

    try:
        return netCDF4.Dataset(path, "r")
    except _ERRORS as error:
        raise UserError(f"{path} cannot be read as NetCDF: {error}") from error


def _fields(path: Path, data_set: Any, options: OriginOptions) -> dict[str, str]:
    variables = _variables(data_set)
    rows = {name: v.dimensions[0] for name, v in variables.items() if v.dimensions}
    coordinates = [n for n in rows if n.rsplit("/", 1)[-1] in variables[n].dimensions]
    return choose_fields(path, rows, coordinates, options, kind="variable")


def _variables(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return all variables, those of groups by their path."""
    found = {prefix + name: variable for name, variable in group.variables.items()}
    for name, inner in group.groups.items():
        found |= _variables(inner, f"{prefix}{name}/")
    return found


def _array(path: Path, data_set: Any, name: str) -> RowArray:
    variable = _variables(data_set).get(name)
    if variable is None:
        raise UserError(f"{path} has no variable {name!r}, which the first file has")
    read = _reader(path, variable, name)
    shape = tuple(variable.shape)
    stored = variable.dtype if isinstance(variable.dtype, np.dtype) else np.dtype(object)
    array = RowArray(name, shape, stored, read, _chunk_rows(variable))
    check_numbers(path, array)
    return array._replace(dtype=read(0, 1).dtype) if shape[0] else array


def _reader(path: Path, variable: Any, name: str) -> Callable[[int, int], NDArray[Any]]:
    def read(start: int, stop: int) -> NDArray[Any]:
        try:
            values = variable[start:stop]
        except _ERRORS as error:
            raise UserError(
                f"{path} is damaged: {name}, rows {start} to {stop - 1}: {error}"
            ) from error
        check_present(path, name, start, np.ma.getmaskarray(values))
        return np.ma.getdata(values)

    return read


def _chunk_rows(variable: Any) -> int:
    chunking = variable.chunking()
    return (
        int(chunking[0]) if isinstance(chunking, Sequence) and not isinstance(chunking, str) else 1
    )
