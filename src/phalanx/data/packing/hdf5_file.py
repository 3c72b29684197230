"""Two data sets of an HDF5 file: inputs and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packing.chunked import ChunkedOrigin
from phalanx.data.packing.origin import Wanted, fingerprint_of
from phalanx.data.packing.targets import labelled
from phalanx.errors import UserError

CHUNK_BYTES = 64 * 2**20
_USUAL_INPUTS, _USUAL_TARGETS = ("inputs", "images", "data", "x", "X"), ("targets", "labels", "y")


class Hdf5File(ChunkedOrigin):
    """Inputs are read in blocks of rows of about 64 MB."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        """Raises: UserError when a data set is missing, or is not numbers, or they do not fit."""
        self._path = path
        self._file = _opened(path)
        inputs_name, target_name = self._names(wanted)
        self._inputs_set, targets = self._data_set(inputs_name), self._data_set(target_name)
        num_samples = self._inputs_set.shape[0]
        if targets.shape[0] != num_samples:
            raise UserError(
                f"{path}: {inputs_name} has {num_samples} rows, {target_name} {targets.shape[0]}"
            )
        self.text = f"{path}, {inputs_name} and {target_name}"
        self.fingerprint = fingerprint_of([path])
        self.targets, self.classes = labelled(targets[...])
        row_bytes = max(1, self._inputs_set.nbytes // max(1, num_samples))
        step = max(1, CHUNK_BYTES // row_bytes)
        starts = range(0, num_samples, step)
        self.chunks = [range(start, min(start + step, num_samples)) for start in starts]
        self.fields = [
            _field("inputs", self._inputs_set.dtype, self._inputs_set.shape),
            _field("targets", self.targets.dtype, self.targets.shape),
        ]

    def read_chunk(self, chunk: int) -> NDArray[Any]:
        rows = self.chunks[chunk]
        try:
            content = self._inputs_set[rows.start : rows.stop]
        except OSError as error:
            raise UserError(
                f"{self._path} is damaged: rows {rows.start} to {rows.stop - 1}: {error}"
            ) from error
        native: NDArray[Any] = np.ascontiguousarray(content, content.dtype.newbyteorder("="))
        return native

    def close(self) -> None:
        self._file.close()

    def _names(self, wanted: Wanted) -> tuple[str, str]:
        there: list[str] = []
        self._file.visititems(lambda name, item: there.append(name) if _is_set(item) else None)
        if len(wanted.inputs) > 1:
            raise UserError(f"{self._path}: name one data set with --inputs, not {wanted.inputs}")
        inputs = wanted.inputs[0] if wanted.inputs else _first(_USUAL_INPUTS, there)
        target = wanted.target or _first(_USUAL_TARGETS, there)
        listed = ", ".join(there[:12]) or "nothing"
        if inputs is None or target is None:
            raise UserError(
                f"which data sets of {self._path} are wanted? name them with --inputs and "
                f"--target: {listed}"
            )
        return inputs, target

    def _data_set(self, name: str) -> Any:
        item = self._file.get(name)
        if not _is_set(item):
            raise UserError(f"{self._path} has no data set {name!r}")
        if item.dtype.kind not in "biuf" or not item.shape:
            raise UserError(
                f"{self._path}: {name} is {item.dtype} of {item.shape}, not rows of numbers"
            )
        return item


def _opened(path: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError(
            "HDF5 needs h5py, which is not installed: pip install 'phalanx[data]'"
        ) from None
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"{path} cannot be read as HDF5: {error}") from error


def _is_set(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape")


def _first(usual: tuple[str, ...], there: list[str]) -> str | None:
    return next((name for name in usual if name in there), None)


def _field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    return Field(name=name, dtype=dtype.newbyteorder("=").name, shape=list(shape[1:]))
