"""Origins whose samples are read one at a time, each with parts by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import check_rounded, listed, promoted
from phalanx.data.packed.index import Field, sample_bytes
from phalanx.data.packed.shard_writers import Rows, Sample
from phalanx.data.packing.image_form import ImageForm, Peek, choose_form, peek
from phalanx.data.packing.origin import Numbers, Origin, OriginOptions
from phalanx.data.packing.targets import TargetLocations, labelled, parse_targets
from phalanx.errors import UserError

INPUTS, TARGETS = "inputs", "targets"

Part = NDArray[Any] | bytes | str
"""Numbers, the file of an image, or a word, which only a target can be."""


class RecordOrigin(Origin):
    """Samples that are found out about by reading each once: which fields, dtypes and shapes."""

    keeps_numbers = False
    """Single numbers that are the target stay what they are; else whole ones are classes."""
    squeezes = False
    """Lists of one number in every sample are single numbers."""

    @abstractmethod
    def record(self, number: int) -> Mapping[str, Any]:
        """Return a sample, its parts as they are stored.

        Raises: UserError that begins with `where`.
        """

    def part(self, value: Any, where: str) -> Part:  # noqa: ARG002
        """Convert a part of a record; only those that are packed are converted.

        Raises: UserError that begins with `where`, the location of the part.
        """
        return value  # type: ignore[no-any-return]

    @abstractmethod
    def where(self, number: int) -> str:
        """Return the location of a sample, for error messages."""

    def field_name(self, part: str) -> str:
        """Return the field of a part that has one of its own."""
        return part.replace("/", "_")

    def packed_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype in which numbers of `dtype` are packed."""
        return dtype

    def read(self, numbers: Numbers) -> Rows | list[Sample]:
        samples: list[Sample] = [self._sample(number) for number in numbers.tolist()]
        if any(sample_bytes(field) is None for field in self.fields):
            return samples
        return {
            field.name: np.stack([np.asarray(sample[field.name]) for sample in samples])
            for field in self.fields
        }

    def _scan(self, num_samples: int, options: OriginOptions) -> None:
        """Read all samples and set everything that an origin has.

        Raises: UserError naming the sample, and the part that does not fit those before.
        """
        if num_samples < 1:
            raise UserError(f"{self.text} has no samples")
        self._sources = self._choose(options)
        scans = {name: FieldScan(name) for name in self._sources}
        for number in range(num_samples):
            for name, part in self._chosen(number).items():
                scans[name].add(part, f"{self.where(number)}, {self._title(name)}")
        self._targets: NDArray[Any] | None = None
        self.classes, self._forms = [], {}
        self.chunks = [range(num_samples)]
        self.max_sample_bytes = sum(scan.max_bytes for scan in scans.values())
        self.fields = [self._field(name, scan, options) for name, scan in scans.items()]

    def _choose(self, options: OriginOptions) -> dict[str, tuple[str, ...]]:
        """Return the parts of each field, by the first sample."""
        record = self.record(0)
        inputs = chosen_inputs([*record], options, self.text)
        if not inputs and options.target is None:
            return {self.field_name(name): (name,) for name in record}
        where = self.where(0)
        parts = [self.part(record[name], f"{where}, {name!r}") for name in inputs]
        fields: dict[str, tuple[str, ...]] = {self.field_name(name): (name,) for name in inputs}
        if len(inputs) == 1 or all(self._is_number(part) for part in parts):
            fields = {INPUTS: tuple(inputs)}
        return fields if options.target is None else {**fields, TARGETS: (options.target,)}

    def _is_number(self, part: Part) -> bool:
        return isinstance(part, np.ndarray) and part.size == 1 and part.ndim <= self.squeezes

    def _field(self, name: str, scan: FieldScan, options: OriginOptions) -> Field:
        if self.squeezes and scan.shape == (1,):
            scan.shape = ()
        if scan.words or (name == TARGETS and scan.shape == () and not self.keeps_numbers):
            locations = TargetLocations(
                f"{self.text}, {self._title(name)}",
                lambda i: f"{self.where(i)}, {self._title(name)}",
            )
            values = parse_targets(scan.words, locations) if scan.words else np.array(scan.numbers)
            self._targets, self.classes = labelled(values, locations, options.classes)
            return Field(name=name, dtype=self._targets.dtype.name, shape=[])
        if scan.peeks:
            form = choose_form(scan.peeks, options)
            self._forms[name] = form
            self.notes += form.notes
            return Field(
                name=name, dtype="uint8", shape=form.field.shape, encoding=form.field.encoding
            )
        assert scan.dtype is not None
        shape = None if scan.shape is None else list(scan.shape)
        return Field(name=name, dtype=self.packed_dtype(scan.dtype).name, shape=shape)

    def _sample(self, number: int) -> dict[str, Any]:
        chosen: dict[str, Any] = dict(self._chosen(number))
        for field in self.fields:
            name = field.name
            if name == TARGETS and self._targets is not None:
                chosen[name] = self._targets[number, ...]
            elif name in self._forms:
                chosen[name] = self._forms[name].packed(chosen[name], self.where(number))
            else:
                array = check_rounded(name, chosen[name], np.dtype(field.dtype), self.notes)
                array = np.asarray(array, order="C")
                chosen[name] = array if field.shape is None else array.reshape(field.shape)
        return chosen

    def _chosen(self, number: int) -> dict[str, Part]:
        """Return the parts of a sample by field; several of one field stand side by side."""
        record, where = self.record(number), self.where(number)
        chosen: dict[str, Part] = {}
        for field, names in self._sources.items():
            for name in names:
                if name not in record:
                    raise UserError(f"{where}: it has no {name!r}, only {', '.join(record)}")
            parts = [self.part(record[name], f"{where}, {name!r}") for name in names]
            chosen[field] = parts[0] if len(parts) == 1 else self._side_by_side(parts, field, where)
        return chosen

    def _side_by_side(self, parts: Sequence[Part], field: str, where: str) -> NDArray[Any]:
        for name, part in zip(self._sources[field], parts, strict=True):
            if not self._is_number(part):
                raise UserError(f"{where}, {name!r}: it is no single number, as it was before")
        numbers = [np.asarray(part).reshape(()) for part in parts]
        dtype = np.result_type(*numbers)
        if {number.dtype.kind for number in numbers} > {"f"}:
            dtype = self.packed_dtype(dtype)
            for name, number in zip(self._sources[field], numbers, strict=True):
                check_rounded(repr(name), number, dtype, self.notes)
        return np.array(numbers, dtype)

    def _title(self, field: str) -> str:
        return ", ".join(map(repr, self._sources[field]))

    _sources: dict[str, tuple[str, ...]]
    _forms: dict[str, ImageForm]


class FieldScan:
    """Dtype and shape of a field, the words and images in it, while its samples are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int, ...] | None = None
        """None: samples differ."""
        self.words: list[str] = []
        self.numbers: list[Any] = []
        """Of single numbers that are the target."""
        self.peeks: list[Peek] = []
        self.max_bytes = 0
        """Of the largest part; of an image's file."""
        self._kind: str | None = None

    def add(self, part: Part, where: str) -> None:
        """Raises: UserError that begins with `where` for a part of another kind than before."""
        kind = "numbers" if isinstance(part, np.ndarray) else type(part).__name__
        if self._kind not in (None, kind):
            raise UserError(f"{where}: it holds {_SPOKEN[kind]}, and {_SPOKEN[self._kind]} before")
        num_bytes = part.nbytes if isinstance(part, np.ndarray) else len(part)
        self.max_bytes = max(self.max_bytes, num_bytes)
        if isinstance(part, str):
            self._add_word(part, where)
        elif isinstance(part, bytes):
            self.peeks.append(peek(part, f"{where}:"))
        else:
            self._add_numbers(part, where)
        self._kind = kind

    def _add_word(self, word: str, where: str) -> None:
        if self.name != TARGETS:
            raise UserError(
                f"{where}: the text {word[:40]!r} is no array of numbers\nonly a target can be "
                "text: name it with --target, or choose parts with --inputs"
            )
        self.words.append(word)

    def _add_numbers(self, array: NDArray[Any], where: str) -> None:
        if array.dtype.kind not in "biufc":
            raise UserError(f"{where}: an array of {array.dtype} is not one of numbers")
        if self._kind is None:
            self.dtype, self.shape = array.dtype, array.shape
        elif self.dtype is not None:
            dtype = promoted(self.dtype, array.dtype)
            if dtype is None:
                raise UserError(
                    f"{where}: it holds {array.dtype}, and {self.dtype} before: no type holds both"
                )
            self.dtype = dtype
            if self.shape is not None and len(array.shape) != len(self.shape):
                raise UserError(f"{where}: its shape is {array.shape}, and {self.shape} before")
            self.shape = self.shape if self.shape == array.shape else None
        if self.name == TARGETS and array.size == 1:
            self.numbers.append(array.reshape(-1)[0])


_SPOKEN = {"numbers": "numbers", "bytes": "an image", "str": "text", None: "nothing"}


def chosen_inputs(names: Sequence[str], options: OriginOptions, source: str) -> list[str]:
    """Return the parts that are inputs: those named, else all but the target; none where nothing
    is named.

    Raises: UserError when a part is named that does not exist, or twice.
    """
    target = () if options.target is None else (options.target,)
    for name in (*options.inputs, *target):
        if name not in names:
            raise UserError(f"{source} has no {name!r}: it has {listed(names)}")
    if not options.inputs and not target:
        return []
    inputs = list(options.inputs) or [name for name in names if name not in target]
    if not inputs or {*inputs} & {*target} or len({*inputs}) < len(inputs):
        raise UserError(f"{source}: inputs {inputs} and target {options.target!r} must differ")
    return inputs
