"""Tables: rows of named parts, the form in which every format is packed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import is_index, listed
from phalanx.data.packing.options import OriginOptions
from phalanx.errors import UserError

Numbers = NDArray[np.int64]

INPUTS, TARGETS = "inputs", "targets"

Part = NDArray[Any] | bytes | str | Path
"""Numbers, an image's file or its path, or a word, which only a target can be."""

Values = NDArray[Any] | list[Part]
"""One part of several rows: (n, …) numbers, or a value for each row."""


class Known(NamedTuple):
    """Dtype and shape of a part, known without reading all rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of one row."""


class SourceTable(ABC):
    """Rows of named parts. A format is a table; `Origin` makes samples of any table."""

    text: str
    """Name and place of the source, for people."""
    fingerprint: str
    """Differs when the data does, as far as names, sizes and times tell."""
    names: Sequence[str]
    """Names of the parts."""
    blocks: list[range]
    """Rows that are best read together; one where any row is as good as the next."""
    validation: Numbers | None = None
    """The rows that the data itself sets aside; None where it says nothing."""
    classes: list[str] | None = None
    """Names of the targets, where these are numbers of known classes."""

    part_word = "part"
    """The format's word for a part, in messages."""
    needs_target = False
    """One part must be the target, where no inputs are named."""
    usual_inputs: Sequence[str] = ()
    """Names of inputs where none are named; without any, all parts but the target are inputs."""
    usual_targets: Sequence[str] = ()
    squeezes = False
    """Lists of one number in every row are single numbers."""
    stacks_one = False
    """One input that is a single number is a row of one number, as several are rows of several."""
    keeps_targets = False
    """Numbers that are targets stay what they are; else whole ones are classes."""
    parses_words = True
    """Targets that are text may be numbers."""

    def __init__(self) -> None:
        self.skipped = CountedItems()
        """Items of the source that are not packed."""
        self.notes: list[str] = []
        """Lines on what is packed otherwise than it was."""

    @abstractmethod
    def read(self, names: Sequence[str], rows: Numbers) -> Mapping[str, Values]:
        """Return parts of rows, all of one block.

        Raises: UserError naming the file, and the row or part that cannot be read.
        """

    @abstractmethod
    def where(self, row: int, name: str) -> str:
        """Return the location of a part of a row, for error messages."""

    def known(self, name: str) -> Known | None:  # noqa: ARG002
        """Return dtype and shape of a part of numbers; None: rows must be read to know."""
        return None

    def packed_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype in which numbers of `dtype` are packed."""
        return dtype

    def field_name(self, part: str) -> str:
        """Return the field of a part that has one of its own."""
        return part.replace("/", "_")

    def has(self, name: str) -> bool:
        """Return whether there is a part of this name."""
        return name in self.names

    def choose(self, options: OriginOptions) -> tuple[list[str], str | None]:
        """Return the parts that are inputs and the one that is the target: those named, else the
        usual ones, else all but the target; no inputs: nothing was named, each part is a field.

        Raises: UserError when a part is named that does not exist, or the choice is not clear.
        """
        for name in (*options.inputs, *([options.target] if options.target else [])):
            if not self.has(name):
                raise UserError(
                    f"{self.text} has no {self.part_word} {name!r}: it has {listed(self.names)}"
                )
        target = options.target or next(filter(self.has, self.usual_targets), None)
        inputs = [*options.inputs]
        if not inputs:
            inputs = [name for name in self.usual_inputs if self.has(name)][:1]
        lacks_inputs = bool(self.usual_inputs) and not inputs
        lacks_target = self.needs_target and target is None and not options.inputs
        if lacks_inputs or lacks_target:
            what = f"which {self.part_word} of {self.text} is the target? choose one with --target"
            if self.usual_inputs:
                what = f"which {self.part_word}s of {self.text} are inputs? name them with --inputs"
                what += " and --target"
            raise UserError(f"{what}: {listed(self.names)}")
        if not inputs and target is not None:
            for name in self.names:
                if name != target and is_index(name):
                    self.skipped.add("columns that are the rows' index or have no name", repr(name))
                elif name != target:
                    inputs.append(name)
        chosen = [*inputs, *([] if target is None else [target])]
        for name in chosen:
            if list(self.names).count(name) > 1:
                raise UserError(f"{self.text} has two {self.part_word}s {name!r}")
        if len({*chosen}) < len(chosen) or (target is not None and not inputs):
            raise UserError(f"{self.text}: inputs {inputs} and target {target!r} must differ")
        return inputs, target

    def close(self) -> None:  # noqa: B027  # most formats hold nothing open
        """Close all files."""


class BlockTable(SourceTable):
    """Table whose blocks are read whole; the last one is kept."""

    _kept: tuple[tuple[int, tuple[str, ...]], Mapping[str, Values]] | None = None

    def read(self, names: Sequence[str], rows: Numbers) -> Mapping[str, Values]:
        block = block_of(self.blocks, int(rows[0])) if len(rows) else 0
        key = (block, tuple(names))
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not two of them at once
            self._kept = key, self.read_block(block, names)
        offsets = rows - self.blocks[block].start
        return {name: take(values, offsets) for name, values in self._kept[1].items()}

    @abstractmethod
    def read_block(self, block: int, names: Sequence[str]) -> Mapping[str, Values]:
        """Return parts of all rows of a block."""


class ArrayTable(SourceTable):
    """Table of columns in memory, or mapped, of equally many rows."""

    usual_targets: Sequence[str] = (TARGETS,)
    part_word = "array"

    def __init__(
        self,
        text: str,
        columns: Mapping[str, Values],
        *,
        fingerprint: str,
        classes: Sequence[str] | None = None,
        num_train: int | None = None,
    ) -> None:
        """columns: by name. num_train: the rest of the rows is for validation."""
        super().__init__()
        self.text, self.fingerprint, self.names = text, fingerprint, [*columns]
        self.classes = None if classes is None else [*classes]
        self._columns = dict(columns)
        num_rows = len(next(iter(columns.values())))
        self.blocks = [range(num_rows)]
        self.validation = None if num_train is None else np.arange(num_train, num_rows)

    def known(self, name: str) -> Known | None:
        column = self._columns[name]
        if not isinstance(column, np.ndarray):
            return None
        return Known(column.dtype.newbyteorder("="), column.shape[1:])

    def read(self, names: Sequence[str], rows: Numbers) -> Mapping[str, Values]:
        return {name: take(self._columns[name], rows) for name in names}

    def where(self, row: int, name: str) -> str:
        value = self._columns[name][row]
        return str(value) if isinstance(value, Path) else f"{self.text}, {name} {row}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raises: UserError that begins with `what` for any error of a library that reads: on damaged
    files they raise what comes."""
    try:
        yield
    except (UserError, ModuleNotFoundError):  # the latter says what to install
        raise
    except Exception as error:
        raise UserError(f"{what}: {str(error)[:200]}") from error


def block_of(blocks: Sequence[range], row: int) -> int:
    """Return the number of the block that holds a row."""
    return bisect_right(blocks, row, key=lambda block: block.start) - 1


def take(values: Values, rows: Numbers) -> Values:
    """Return the values of some rows."""
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows.tolist()]


def fingerprint_of(files: Iterable[Path]) -> str:
    """Return a hash of names, sizes and modification times; content is not read."""
    digest = hashlib.sha256()
    for file in files:
        state = file.stat()
        digest.update(f"{file.name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def text_of(paths: Sequence[Path]) -> str:
    """Return the file, or the folder of several, for people."""
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


MAX_NAMED = 10


class CountedItems:
    """Number and first names of items, by what they are."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._names = defaultdict[str, list[str]](list)

    def add(self, what: str, name: object) -> None:
        self._counts[what] += 1
        if len(self._names[what]) < MAX_NAMED:
            self._names[what].append(str(name))

    def lines(self) -> list[str]:
        """Return a line for each kind, with its first names."""
        return [
            f"{count:,} {what}: {', '.join(self._names[what])}"
            + (f" and {count - MAX_NAMED:,} more" if count > MAX_NAMED else "")
            for what, count in self._counts.items()
        ]
