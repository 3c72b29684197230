"""Tables of records, each read by itself, and the simplest of them: JSON lines."""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from phalanx.data.gzip_file import open_unzipped
from phalanx.data.packing.table import (
    Numbers,
    Part,
    SourceTable,
    Values,
    fingerprint_of,
    reading,
    text_of,
)
from phalanx.data.unpacked import TEXT_BYTES, unpacked_limit
from phalanx.errors import UserError


class RecordTable(SourceTable):
    """Table whose rows are read one at a time, in any order."""

    @abstractmethod
    def record(self, number: int) -> Mapping[str, Any]:
        """Return a row, its parts as they are stored.

        Raises: UserError that begins with `place`.
        """

    @abstractmethod
    def place(self, number: int) -> str:
        """Return the location of a row, for error messages."""

    def part(self, value: Any, where: str) -> Part:  # noqa: ARG002
        """Convert a part of a record.

        Raises: UserError that begins with `where`, the location of the part.
        """
        return value  # type: ignore[no-any-return]

    def read(self, names: Sequence[str], rows: Numbers) -> Mapping[str, Values]:
        values: dict[str, list[Part]] = {name: [] for name in names}
        for row in rows.tolist():
            record = self.record(row)
            for name in names:
                if name not in record:
                    raise UserError(
                        f"{self.place(row)}: it has no {name!r}, only {', '.join(record)}"
                    )
                values[name].append(self.part(record[name], self.where(row, name)))
        return dict(values)

    def where(self, row: int, name: str) -> str:
        return f"{self.place(row)}, {name!r}"

    def _set_rows(self, number: int) -> None:
        """Set names and blocks of so many rows."""
        self.blocks = [range(number)] if number else []
        self.names = [*self.record(0)] if number else []


class RecordPlace(NamedTuple):
    offset: int
    size: int
    """Bytes."""
    position: int
    """Number of the line or byte, for error messages."""


class RecordFiles(RecordTable):
    """Records of one file, or of several one after the other, gzipped or not; read where they lie.
    Where they lie is kept in memory, 32 bytes a record."""

    position_word = "at byte"

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises: UserError naming the record that is damaged."""
        super().__init__()
        self._paths, self._files = list(paths), list[IO[bytes]]()
        self._places = array("q")  # four numbers each: the file, and a RecordPlace
        self.text, self.fingerprint = text_of(paths), fingerprint_of(paths)
        try:
            for number, path in enumerate(paths):
                limit = unpacked_limit(path.stat().st_size, TEXT_BYTES)
                self._files.append(open_unzipped(path, limit_bytes=limit))
                for place in self.find(path, self._files[number]):
                    self._places.extend((number, *place))
            self._set_rows(len(self._places) // 4)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def find(self, path: Path, file: IO[bytes]) -> Iterator[RecordPlace]:
        """Yield the location of every record of a file."""

    @abstractmethod
    def parse(self, content: bytes, where: str) -> Mapping[str, Any]:
        """Return the parts of a record. Raises: UserError that begins with `where`."""

    def record(self, number: int) -> Mapping[str, Any]:
        file, offset, size, _ = self._places[4 * number : 4 * number + 4]
        content = os.pread(self._files[file].fileno(), size, offset)
        return self.parse(content, self.place(number))

    def place(self, number: int) -> str:
        file, position = self._places[4 * number], self._places[4 * number + 3]
        return f"{self._paths[file]} {self.position_word} {position}"

    def close(self) -> None:
        while self._files:
            self._files.pop().close()


class JsonLines(RecordFiles):
    """An object a line, of numbers, lists of them of any depth, and text. Whole numbers are packed
    as int64, others as float32. Empty lines are passed over."""

    position_word, part_word = "line", "key"

    def find(self, path: Path, file: IO[bytes]) -> Iterator[RecordPlace]:  # noqa: ARG002
        mark = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
        offset = file.seek(mark)
        for number, line in enumerate(file, 1):
            if line.strip():
                yield RecordPlace(offset, len(line), number)
            offset += len(line)

    def parse(self, content: bytes, where: str) -> Mapping[str, Any]:
        return parse_object(content, where)

    def part(self, value: Any, where: str) -> Part:
        return part_of_json(value, where)

    def packed_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32) if dtype.kind == "f" else dtype


def parse_object(content: bytes, where: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises: UserError that begins with `where`."""
    with reading(f"{where} is not JSON"):
        found = msgspec.json.decode(content)
    if not isinstance(found, dict) or not found:
        raise UserError(f"{where} is not a JSON object with parts, {{…}}, but {content[:40]!r}")
    return found


def part_of_json(value: Any, where: str) -> Part:
    """Return a value of JSON as text or an array. Raises: UserError that begins with `where`."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, dict):
        what = "null" if value is None else "an object"
        raise UserError(f"{where}: {what} is not an array of numbers\nchoose parts with --inputs")
    with reading(f"{where}: lists of differing lengths are not an array"):
        array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype == np.uint64:
        raise UserError(f"{where}: it holds more than numbers, or numbers out of range")
    return array
