"""Two data sets of an HDF5 file: inputs and targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packed.index import Field
from phalanx.data.packing.origin import ChunkedOrigin, OriginOptions, fingerprint_of, targets_field
from phalanx.data.packing.targets import TargetLocations, labelled
from phalanx.errors import UserError
from phalanx.launch.cores import check_fits

CHUNK_BYTES = 64 * 2**20
BYTES_OF_A_SAMPLE = 40
"""Bytes of memory per sample while packing: its target, and its position in the order."""

_USUAL_INPUTS, _USUAL_TARGETS = ("inputs", "images", "data", "x", "X"), ("targets", "labels", "y")


class Hdf5File(ChunkedOrigin):
    """Inputs are read in blocks of rows of about 64 MB."""

    def __init__(self, path: Path, options: OriginOptions) -> None:
        """Raises: UserError when a data set is missing, lies in another file, is not numbers, or
        the two do not fit each other or the memory."""
        super().__init__()
        self._path = path
        self._file = _opened(path)
        with _reading(path):
            inputs_name, target_name = self._names(options)
            self._inputs_set, targets = self._data_set(inputs_name), self._data_set(target_name)
            self._check_sizes(inputs_name, target_name, targets)
            values = targets[...]
        num_samples = self._inputs_set.shape[0]
        self.text = f"{path}, {inputs_name} and {target_name}"
        self.fingerprint = fingerprint_of([path])
        locations = TargetLocations(
            f"{path}, {target_name}", lambda i: f"{path}, {target_name} row {i}"
        )
        self.targets, self.classes = labelled(values, locations, options.classes)
        row_bytes = max(1, self._inputs_set.nbytes // max(1, num_samples))
        step = max(1, CHUNK_BYTES // row_bytes)
        starts = range(0, num_samples, step)
        self.chunks = [range(start, min(start + step, num_samples)) for start in starts]
        self.fields = [
            Field(
                name="inputs",
                dtype=self._inputs_set.dtype.newbyteorder("=").name,
                shape=list(self._inputs_set.shape[1:]),
            ),
            targets_field(self.targets),
        ]

    def read_chunk(self, chunk: int) -> NDArray[Any]:
        rows = self.chunks[chunk]
        with _reading(self._path, f"rows {rows.start} to {rows.stop - 1}: "):
            content = self._inputs_set[rows.start : rows.stop]
        native: NDArray[Any] = np.ascontiguousarray(content, content.dtype.newbyteorder("="))
        return native

    def close(self) -> None:
        self._file.close()

    def _names(self, options: OriginOptions) -> tuple[str, str]:
        there: list[str] = []
        self._file.visititems(lambda name, item: there.append(name) if _is_set(item) else None)
        if len(options.inputs) > 1:
            raise UserError(f"{self._path}: name one data set with --inputs, not {options.inputs}")
        inputs = options.inputs[0] if options.inputs else _first(_USUAL_INPUTS, self._file)
        target = options.target or _first(_USUAL_TARGETS, self._file)
        listed = ", ".join(there[:12]) or "nothing"
        if inputs is None or target is None:
            raise UserError(
                f"which data sets of {self._path} are wanted? name them with --inputs and "
                f"--target: {listed}"
            )
        return inputs, target

    def _data_set(self, name: str) -> Any:
        item = find_data_set(self._path, self._file, name)
        if item is None:
            raise UserError(f"{self._path} has no data set {name!r}")
        if item.dtype.kind not in "biuf" or not item.shape:
            raise UserError(
                f"{self._path}: {name} is {item.dtype} of {item.shape}, not rows of numbers"
            )
        return item

    def _check_sizes(self, inputs_name: str, target_name: str, targets: Any) -> None:
        path, num_samples = self._path, self._inputs_set.shape[0]
        if targets.shape[0] != num_samples:
            raise UserError(
                f"{path}: {inputs_name} has {num_samples} rows, {target_name} {targets.shape[0]}"
            )
        if num_samples < 1:
            raise UserError(f"{path}: {inputs_name} and {target_name} have no rows")
        check_fits(
            2 * targets.nbytes + num_samples * BYTES_OF_A_SAMPLE,
            f"{path}: {target_name} has {num_samples:,} rows",
        )
        shape = self._inputs_set.shape[1:]
        row_bytes = self._inputs_set.nbytes // num_samples
        check_fits(4 * row_bytes, f"{path}: a row of {inputs_name} is {shape}")


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


def _checked(path: Path, file: Any, name: str, depth: int) -> Any:
    if depth > MAX_LINKS:
        raise UserError(f"{path}: {name} is made of data sets that are made of each other")
    item = _resolved(path, file, name)
    if item is None or not (hasattr(item, "dtype") and hasattr(item, "shape")):
        return None
    if item.external:
        raise UserError(_refusal(path, name, item.external[0][0]))
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
