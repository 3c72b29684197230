"""JSON lines: an object a line, of numbers, lists of them of any depth, and text."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from phalanx.data.packing.records import RecordFiles, RecordPlace
from phalanx.data.packing.table import Part, reading
from phalanx.errors import UserError


class JsonLines(RecordFiles):
    """Whole numbers are packed as int64, others as float32. Empty lines are passed over."""

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
    with reading(f"{where} is no JSON"):
        found = msgspec.json.decode(content)
    if not isinstance(found, dict) or not found:
        raise UserError(f"{where} is no JSON object with parts, {{…}}, but {content[:40]!r}")
    return found


def part_of_json(value: Any, where: str) -> Part:
    """Return a value of JSON as text or an array. Raises: UserError that begins with `where`."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, dict):
        what = "null" if value is None else "an object"
        raise UserError(f"{where}: {what} is no array of numbers\nchoose parts with --inputs")
    with reading(f"{where}: lists of differing lengths are no array"):
        array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype == np.uint64:
        raise UserError(f"{where}: it holds more than numbers, or numbers out of range")
    return array
