"""Samples to pack, of any table: which parts are fields, of which dtype and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import check_rounded, promoted
from phalanx.data.packed.index import Field, sample_bytes
from phalanx.data.packed.shard_writers import Rows
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.table import INPUTS, TARGETS, Known, Numbers, Part, SourceTable, Values
from phalanx.data.packing.targets import TargetLocations, labelled, parse_targets
from phalanx.errors import UserError
from phalanx.jobs.cores import check_fits, usable_cores

BYTES_OF_A_ROW = 40
"""Bytes of memory per row while packing: its target, and its position in the order."""

ROWS_OF_A_SCAN = 256


class Origin:
    """Samples to pack, by number. Images are decoded by as many threads as there are processors."""

    def __init__(self, table: SourceTable, options: OriginOptions) -> None:
        """Reads the targets, and the other parts of which dtype and shape are not known.

        Raises: UserError naming what does not fit each other or the memory, or is of no kind that
                can be packed. The table is then closed.
        """
        self._table = table
        self._pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="decode")
        self._targets: NDArray[Any] | None = None
        self._forms: dict[str, ImageForm] = {}
        self._are_numbers = False
        """Inputs are single numbers, side by side."""
        self.classes: list[str] = []
        self.notes = table.notes
        """Lines on what is packed otherwise than it was."""
        try:
            inputs, target = table.choose(options)
            self.chunks = table.blocks
            """Samples that are best read together."""
            self.num_samples = table.blocks[-1].stop if table.blocks else 0
            if not self.num_samples:
                raise UserError(f"{table.text} has no samples")
            check_fits(
                self.num_samples * BYTES_OF_A_ROW, f"{table.text} has {self.num_samples:,} rows"
            )
            self._sources = self._fields_of(inputs, target)
            scans = self._scan()
            self.max_sample_bytes = sum(scan.max_bytes for scan in scans.values())
            """Bytes of the largest sample, if samples differ in size; 0: unknown."""
            self.fields = [self._field(scan, options) for scan in scans.values()]
        except BaseException:
            self.close()
            raise
        self.validation, self.skipped = table.validation, table.skipped.lines()
        self.fingerprint = table.fingerprint
        self.text = table.text
        if table.needs_target and target is not None:
            self.text += f", target {target}"

    def read(self, numbers: Numbers) -> Rows:
        """Return samples by number, of one chunk wherever possible.

        Raises: UserError naming the file, and the sample, row or column that cannot be read.
        """
        runs = [self._read(rows) for rows in _runs(self.chunks, numbers)]
        if len(runs) == 1:
            return runs[0]
        return {
            field.name: [part for run in runs for part in run[field.name]]
            if sample_bytes(field) is None
            else np.concatenate([run[field.name] for run in runs])
            for field in self.fields
        }

    def close(self) -> None:
        """Close all files."""
        self._pool.shutdown(cancel_futures=True)
        self._table.close()

    def _fields_of(self, inputs: list[str], target: str | None) -> dict[str, tuple[str, ...]]:
        """Return the parts of each field."""
        if not inputs and target is None:
            return {self._table.field_name(name): (name,) for name in self._table.names}
        self._are_numbers = all(map(self._is_number, inputs)) and (
            len(inputs) > 1 or self._table.stacks_one
        )
        fields: dict[str, tuple[str, ...]] = {INPUTS: tuple(inputs)}
        if len(inputs) > 1 and not self._are_numbers:
            fields = {self._table.field_name(name): (name,) for name in inputs}
        return fields if target is None else {**fields, TARGETS: (target,)}

    def _is_number(self, name: str) -> bool:
        """Return whether a part is a single number, in the first row."""
        known = self._table.known(name)
        if known is not None:
            return known.shape == ()
        (value,) = self._table.read([name], np.zeros(1, np.int64))[name]
        return _is_number(value, self._table.squeezes)

    def _scan(self) -> dict[str, FieldScan]:
        """Find out about all fields; read what must be read for it, in the order of the rows."""
        scans = {field: FieldScan(field, self._known(field)) for field in self._sources}
        read = [
            field
            for field, scan in scans.items()
            if scan.dtype is None or (field == TARGETS and len(scan.shape or ()) < 2)
        ]
        names = [name for field in read for name in self._sources[field]]
        for rows in _steps(self.chunks) if names else ():
            values = self._table.read(names, rows)
            for field in read:
                scans[field].add(self._together(field, values, rows), self._locate(field, rows))
        return scans

    def _known(self, field: str) -> Known | None:
        found = [part for name in self._sources[field] if (part := self._table.known(name))]
        if len(found) < len(self._sources[field]):
            return None
        shape = (len(found),) if self._is_stacked(field) else found[0].shape
        return Known(np.result_type(*(part.dtype for part in found)), shape)

    def _is_stacked(self, field: str) -> bool:
        return field == INPUTS and self._are_numbers

    def _locate(self, field: str, rows: Numbers) -> Callable[[int], str]:
        return lambda position: self._table.where(int(rows[position]), self._sources[field][0])

    def _field(self, scan: FieldScan, options: OriginOptions) -> Field:
        name, table = scan.name, self._table
        if table.squeezes and scan.shape == (1,):
            scan.shape = ()
            scan.numbers = [numbers.reshape(-1) for numbers in scan.numbers]
        is_label = scan.numbers and scan.shape is not None and not table.keeps_targets
        if name == TARGETS and (scan.words or is_label):
            self._label(scan, options)
            assert self._targets is not None
            shape = list(self._targets.shape[1:])
            return Field(name=name, dtype=self._targets.dtype.name, shape=shape)
        if scan.peeks:
            form = self._forms[name] = choose_form(name, scan.peeks, options)
            self.notes += form.notes
            return form.field
        assert scan.dtype is not None, "there is a row"
        dtype = table.packed_dtype(scan.dtype).newbyteorder("=")
        sizes = None if scan.shape is None else list(scan.shape)
        return Field(name=name, dtype=dtype.name, shape=sizes)

    def _label(self, scan: FieldScan, options: OriginOptions) -> None:
        table, (name,) = self._table, self._sources[TARGETS]
        locations = TargetLocations(
            f"{table.text}, {table.part_word} {name!r}", lambda row: table.where(row, name)
        )
        values = np.concatenate(scan.numbers) if scan.numbers else np.array(scan.words)
        if scan.words and table.parses_words:
            values = parse_targets(scan.words, locations, options.decimal)
        if table.classes is None:
            self._targets, self.classes = labelled(values, locations, options.classes)
        else:
            self._targets, self.classes = values.astype(np.int64), table.classes

    def _read(self, rows: Numbers) -> dict[str, Any]:
        """Return the fields of rows of one chunk: (n, …), or a list of n."""
        read: dict[str, Any] = {} if self._targets is None else {TARGETS: self._targets[rows]}
        fields = [field for field in self.fields if field.name not in read]
        names = [name for field in fields for name in self._sources[field.name]]
        values = self._table.read(names, rows) if names else {}
        for field in fields:
            pack = self._images if field.name in self._forms else self._numbers
            read[field.name] = pack(field, values, rows)
        return read

    def _images(self, field: Field, values: Mapping[str, Values], rows: Numbers) -> Any:
        (name,), form = self._sources[field.name], self._forms[field.name]
        places = map(self._locate(field.name, rows), range(len(rows)))
        packed = list(self._pool.map(form.packed, values[name], places))
        return np.stack(packed) if sample_bytes(field) is not None else packed

    def _numbers(self, field: Field, values: Mapping[str, Values], rows: Numbers) -> Any:
        dtype, name = np.dtype(field.dtype), self._sources[field.name][0]
        together = self._together(field.name, values, rows, dtype)
        if not isinstance(together, np.ndarray):
            arrays = [self._checked(name, np.asarray(value), dtype) for value in together]
            if field.shape is None:
                return [np.asarray(array, order="C") for array in arrays]
            together = np.stack(arrays)
        if self._table.squeezes and not field.shape:
            together = together.reshape(len(rows))
        shape = tuple(field.shape or ())
        if together.shape[1:] != shape:
            where = self._table.where(int(rows[0]), name)
            raise UserError(f"{where}: its shape is {together.shape[1:]}, but {shape} before")
        return np.ascontiguousarray(self._checked(name, together, dtype), dtype)

    def _together(
        self,
        field: str,
        values: Mapping[str, Values],
        rows: Numbers,
        dtype: np.dtype[Any] | None = None,
    ) -> Values:
        """Return the values of a field, its parts side by side where there are several.

        dtype: of the result; None: the one that holds all.
        """
        names = self._sources[field]
        if not self._is_stacked(field):
            return values[names[0]]
        columns = [self._column(name, values[name], rows, dtype) for name in names]
        dtype = dtype or self._table.packed_dtype(np.result_type(*columns))
        out = np.empty((len(rows), len(names)), dtype)
        for place, (name, column) in enumerate(zip(names, columns, strict=True)):
            out[:, place] = self._checked(name, column, dtype)
        return out

    def _column(
        self, name: str, values: Values, rows: Numbers, dtype: np.dtype[Any] | None
    ) -> NDArray[Any]:
        """Return single numbers, (n,). Raises: UserError naming the row that has none."""
        if isinstance(values, np.ndarray) and values.ndim == 1:
            return values
        for row, value in zip(rows.tolist(), values, strict=True):
            if not _is_number(value, self._table.squeezes):
                where = self._table.where(row, name)
                raise UserError(f"{where}: it is not a single number, unlike those before")
        arrays = [np.asarray(value).reshape(()) for value in values]
        if dtype is None:
            return np.array(arrays, np.result_type(*{array.dtype for array in arrays}))
        return np.array([self._checked(name, array, dtype) for array in arrays])

    def _checked(self, name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        return check_rounded(f"{self._table.part_word} {name!r}", values, dtype, self.notes)


def _is_number(value: Any, squeezes: bool) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.size == 1 and value.ndim <= squeezes


def _steps(chunks: Sequence[range]) -> Iterator[Numbers]:
    for chunk in chunks:
        for start in range(chunk.start, chunk.stop, ROWS_OF_A_SCAN):
            yield np.arange(start, min(start + ROWS_OF_A_SCAN, chunk.stop))


def _runs(chunks: Sequence[range], numbers: Numbers) -> list[Numbers]:
    """Return consecutive samples of one chunk."""
    of = np.searchsorted([chunk.start for chunk in chunks], numbers, side="right") - 1
    return [run for run in np.split(numbers, np.flatnonzero(np.diff(of)) + 1) if len(run)]


_SPOKEN = {"numbers": "numbers", "bytes": "an image", "str": "text"}


class FieldScan:
    """Kind, dtype and shape of a field in all rows that were added."""

    def __init__(self, name: str, known: Known | None = None) -> None:
        self.name = name
        self.dtype = None if known is None else known.dtype
        self.shape: tuple[int, ...] | None = None if known is None else known.shape
        """None: rows differ."""
        self.words: list[str] = []
        self.numbers: list[NDArray[Any]] = []
        """Targets, (n, …) each."""
        self.peeks: list[Peek] = []
        self.max_bytes = 0
        """Bytes of the largest part, or of the largest image's file."""
        self._kind: str | None = None

    def add(self, values: Values, where: Callable[[int], str]) -> None:
        """Add the field of several rows. where: returns the location of one, by its position.

        Raises: UserError that begins with a location, for a part of another kind than before.
        """
        if isinstance(values, np.ndarray):
            if len(values):
                self._add_numbers(values[0], where, 0, values)
            return
        for position, part in enumerate(values):
            self._add(part, where, position)

    def _add(self, part: Part, where: Callable[[int], str], position: int) -> None:
        if isinstance(part, np.ndarray):
            self._add_numbers(part, where, position, part[None])
        elif isinstance(part, str):
            self._check_kind("str", where, position)
            if self.name != TARGETS:
                raise UserError(
                    f"{where(position)}: the text {part[:40]!r} is not an array of numbers\nonly a "
                    "target can be text: name it with --target, or choose parts with --inputs"
                )
            self.words.append(part)
        else:
            self._check_kind("bytes", where, position)
            self.peeks.append(peek(part, where(position)))
            self.max_bytes = max(self.max_bytes, 0 if isinstance(part, Path) else len(part))

    def _check_kind(self, kind: str, where: Callable[[int], str], position: int) -> None:
        if self._kind and self._kind != kind:
            raise UserError(
                f"{where(position)}: it holds {_SPOKEN[kind]}, but {_SPOKEN[self._kind]} before"
            )
        self._kind = kind

    def _add_numbers(
        self, one: NDArray[Any], where: Callable[[int], str], position: int, rows: NDArray[Any]
    ) -> None:
        """one: the first of `rows`, (n, …)."""
        is_first = self._kind is None and self.dtype is None
        self._check_kind("numbers", where, position)
        if one.dtype.kind not in "biufc":
            raise UserError(f"{where(position)}: an array of {one.dtype} does not hold numbers")
        self.max_bytes = max(self.max_bytes, one.nbytes)
        if is_first:
            self.dtype, self.shape = one.dtype, one.shape
        elif self.dtype is not None and self.dtype != one.dtype:
            dtype = promoted(self.dtype, one.dtype)
            if dtype is None:
                raise UserError(
                    f"{where(position)}: it holds {one.dtype}, but {self.dtype} before: no type "
                    "holds both"
                )
            self.dtype = dtype
        if self.shape is not None and one.shape != self.shape:
            if one.ndim != len(self.shape):
                raise UserError(
                    f"{where(position)}: its shape is {one.shape}, but {self.shape} before"
                )
            self.shape = None
        if self.name == TARGETS and one.ndim < 2:
            self.numbers.append(rows)
