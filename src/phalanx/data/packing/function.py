"""Samples that a Python function makes: `my_data.py:samples`."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.records import RecordTable
from phalanx.data.packing.table import INPUTS, TARGETS, Part, reading
from phalanx.errors import UserError
from phalanx.models.user_function import FunctionName, load_any, users_code


def is_function(source: str) -> bool:
    """Return whether a source is named as `FILE.py:NAME`."""
    place, _, name = source.rpartition(":")
    return place.endswith(".py") and name.isidentifier()


class FunctionSamples(RecordTable):
    """Samples of a generator, or of whatever can be iterated: dictionaries, whose keys name the
    fields, pairs of inputs and targets, or inputs alone. Kept in a file in the folder for temporary
    files ($TMPDIR) until they are packed, so that they are read in any order."""

    keeps_targets = True

    def __init__(self, text: str, samples: Iterable[Any]) -> None:
        """Takes all samples. Raises: UserError naming the sample and field at fault, or when the
        disk is full."""
        super().__init__()
        self.text, self._ends = text, array("q", [0])
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            digest, first = hashlib.sha256(), dict[str, Part]()
            for number, sample in enumerate(samples):
                parts = _parts(sample, self.place(number))
                first = first or parts
                _check_alike(parts, first, self.place(number))
                digest.update(content := msgspec.msgpack.encode(parts, enc_hook=_encoded))
                self._write(content)
            self._file.flush()
            self.fingerprint = digest.hexdigest()[:16]
            self._set_rows(len(self._ends) - 1)
        except BaseException:
            self.close()
            raise

    def record(self, number: int) -> Mapping[str, Part]:
        start, end = self._ends[number : number + 2]
        content = os.pread(self._file.fileno(), end - start, start)
        return {name: _decoded(part) for name, part in msgspec.msgpack.decode(content).items()}

    def place(self, number: int) -> str:
        return f"{self.text}, sample {number}"

    def close(self) -> None:
        self._file.close()

    def _write(self, content: bytes) -> None:
        self._ends.append(self._ends[-1] + len(content))
        try:
            self._file.write(content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"{tempfile.gettempdir()} is full: samples are stored there until they are packed; "
                "choose a folder on another disk with TMPDIR=…"
            ) from error


def _encoded(part: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return part.dtype.str, part.shape, np.ascontiguousarray(part).tobytes()


def _decoded(part: Any) -> Part:
    if isinstance(part, list):
        dtype, shape, content = part
        return np.frombuffer(content, dtype).reshape(shape)
    decoded: Part = part
    return decoded


def data_of(source: str) -> tuple[FunctionName, Any]:
    """Return what a function returns, called without arguments, or what else has the name.

    Raises: UserError naming file and line, when there is no such name, or it fails.
    """
    name = FunctionName.parse("data pack", source)
    made = load_any(name)
    with users_code(name):
        return name, made() if callable(made) else made


def samples_in(made: Any, name: FunctionName) -> Iterator[Any]:
    """Yield the samples of whatever can be iterated, or has a length and items by number.

    Raises: UserError naming file and line, when it has none, or fails.
    """
    samples: Iterator[Any] | None
    if isinstance(made, str | bytes | Mapping):
        samples = None
    elif hasattr(made, "__getitem__") and hasattr(made, "__len__"):
        samples = (made[number] for number in range(len(made)))  # a data set may have no end
    else:
        samples = iter(made) if isinstance(made, Iterable) else None
    if samples is None:
        raise UserError(
            f"{name} gives {_kind_of(made)}: it must yield samples, or return a sequence of them"
        )
    for number in count():
        with users_code(f"{name}, sample {number}"):
            sample = next(samples, _END)
        if sample is _END:
            return
        yield sample


_END = object()


def _parts(sample: Any, where: str) -> dict[str, Part]:
    match sample:
        case Mapping():
            named = dict(sample)
        case tuple() if hasattr(sample, "_fields"):
            named = dict(zip(sample._fields, sample, strict=True))
        case tuple() if len(sample) == 2:
            named = dict(zip((INPUTS, TARGETS), sample, strict=True))
        case tuple() | list():
            raise UserError(
                f"{where}: a {type(sample).__name__} of {len(sample)}: give a tuple of two, inputs "
                "and targets, or a dictionary, whose keys name the fields"
            )
        case _:
            named = {INPUTS: sample}
    for name in named:
        if not isinstance(name, str):
            raise UserError(f"{where}: the key {name!r} is not text: keys name the fields")
    if not named:
        raise UserError(f"{where}: it has no fields")
    return {name: _part(value, f"{where}, field {name!r}") for name, value in named.items()}


def _part(value: Any, where: str) -> Part:
    if isinstance(value, str | bytes):
        return value
    if hasattr(value, "detach"):  # a tensor, of a PyTorch that need not be here
        value = value.detach().cpu()
    if np.ma.is_masked(value):
        raise UserError(f"{where}: it has masked values\nfill them in, or leave the sample out")
    with reading(f"{where}: {_kind_of(value)} is not an array"):
        array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise UserError(f"{where}: {_kind_of(value)} is not an array of numbers")
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _check_alike(parts: Mapping[str, Part], first: Mapping[str, Part], where: str) -> None:
    """Raises: UserError for other fields or dtypes than those of the first sample."""
    if parts.keys() != first.keys():
        raise UserError(
            f"{where}: its fields are {', '.join(parts)}, those of sample 0 {', '.join(first)}"
        )
    for name, part in parts.items():
        found, expected = _dtype_of(part), _dtype_of(first[name])
        if found != expected:
            raise UserError(
                f"{where}, field {name!r}: it has {found}, but sample 0 has {expected}: use one "
                "dtype for all"
            )


def _dtype_of(part: Part) -> str:
    return part.dtype.name if isinstance(part, np.ndarray) else type(part).__name__


def _kind_of(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"an object of type {type(value).__name__}"
