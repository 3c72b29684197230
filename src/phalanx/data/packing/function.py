"""Samples that a Python function makes: `my_data.py:samples`."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.data.packing.origin import OriginOptions
from phalanx.data.packing.record_origin import INPUTS, TARGETS, Part, RecordOrigin
from phalanx.data.packing.spool import SampleSpool
from phalanx.errors import UserError

_FUNCTION = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")


def is_function(source: str) -> bool:
    """Return whether a source is named as `FILE.py:NAME`."""
    return _FUNCTION.fullmatch(source) is not None


class FunctionSamples(RecordOrigin):
    """Samples of a generator, or of whatever can be iterated: dictionaries, whose keys name the
    fields, pairs of inputs and targets, or inputs alone. Kept on disk until they are packed."""

    keeps_numbers = True

    def __init__(self, source: str, options: OriginOptions) -> None:
        """Calls the function and takes all its samples.

        Raises: UserError naming the file, the function, and the sample and field at fault.
        """
        super().__init__()
        self.text = source
        match = _FUNCTION.fullmatch(source)
        if match is None:
            raise UserError(
                f"{source} names no function: write FILE.py:NAME, as in data.py:samples"
            )
        path, name = Path(match["path"]), match["name"]
        self._spool = SampleSpool()
        try:
            self._take(path, made_by(path, name))
            self.fingerprint = self._spool.digest
            self._scan(len(self._spool), options)
        except BaseException:
            self._spool.close()
            raise

    def record(self, number: int) -> Mapping[str, Part]:
        return self._spool.read(number)

    def where(self, number: int) -> str:
        return f"{self.text}, sample {number}"

    def close(self) -> None:
        self._spool.close()

    def _take(self, path: Path, samples: Iterable[Any]) -> None:
        first: dict[str, Part] = {}
        for number, sample in enumerate(_guarded(path, self.text, samples)):
            parts = _parts(sample, self.where(number))
            first = first or parts
            _check_alike(parts, first, self.where(number))
            self._spool.add(parts)


def made_by(path: Path, name: str) -> Iterable[Any]:
    """Return what a function of a Python file returns, called without arguments, or what else has
    the name there.

    Raises: UserError when there is no such file or name, or it fails.
    """
    source = f"{path}:{name}"
    module = _module(path)
    if not hasattr(module, name):
        own = (value for value in vars(module).values() if callable(value))
        there = [f.__name__ for f in own if getattr(f, "__module__", "") == module.__name__]
        raise UserError(f"{path} has no {name}: it has {', '.join(there) or 'no functions'}")
    made = getattr(module, name)
    if callable(made):
        try:
            made = made()
        except Exception as error:  # of the user's program
            raise UserError(f"{source} {_fault(path, error)}") from error
    is_samples = not isinstance(made, str | bytes | Mapping)
    if is_samples and hasattr(made, "__getitem__") and hasattr(made, "__len__"):
        return (made[number] for number in range(len(made)))  # a data set may never end by itself
    if is_samples and isinstance(made, Iterable):
        return made
    raise UserError(
        f"{source} gives {_kind_of(made)}: let it yield samples, or return a sequence of them"
    )


def _module(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"there is no {path}: name a Python file and a function, FILE.py:NAME")
    name = f"_samples_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(
        0, str(path.absolute().parent)
    )  # as for a program: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of the user's program
        raise UserError(f"{path} {_fault(path, error)}") from error
    return module


def _guarded(path: Path, source: str, samples: Iterable[Any]) -> Iterator[Any]:
    number = 0
    try:
        for sample in samples:
            yield sample
            number += 1
    except UserError:
        raise
    except Exception as error:  # of the user's program
        raise UserError(f"{source}, sample {number}: it {_fault(path, error)}") from error


def _fault(path: Path, error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path.absolute()
    ]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    at = f" in line {line}" if line else ""
    return f"raised {type(error).__name__}{at}: {error}"


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
            raise UserError(f"{where}: the key {name!r} is no text: keys name the fields")
    if not named:
        raise UserError(f"{where}: it has no fields")
    return {name: _part(value, f"{where}, field {name!r}") for name, value in named.items()}


def _part(value: Any, where: str) -> Part:
    if isinstance(value, str | bytes):
        return value
    if hasattr(value, "detach"):  # a tensor, of a PyTorch that need not be here
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{where}: {_kind_of(value)} is no array: {error}") from error
    if array.dtype.kind not in "biufc":
        raise UserError(f"{where}: {_kind_of(value)} is no array of numbers")
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
                f"{where}, field {name!r}: it is of {found}, that of sample 0 of {expected}: make "
                "all of one dtype"
            )


def _dtype_of(part: Part) -> str:
    return part.dtype.name if isinstance(part, np.ndarray) else type(part).__name__


def _kind_of(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"an object of type {type(value).__name__}"
