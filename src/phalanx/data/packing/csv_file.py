"""A table in a CSV file: columns of numbers are inputs, one column is the target."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.columns import LARGEST_EXACT, rounded_note
from phalanx.data.gzip_file import read_unzipped
from phalanx.data.packing.options import OriginOptions
from phalanx.data.packing.table import ArrayTable, fingerprint_of
from phalanx.data.packing.targets import parse_number
from phalanx.data.unpacked import TEXT_BYTES, unpacked_limit
from phalanx.errors import UserError

SEPARATORS = ",;\t"


class CsvFile(ArrayTable):
    """A header, then a row a sample; separated by what stands between the names in the header: a
    comma, a semicolon or a tab. Inputs are float32, other columns words, in memory."""

    part_word = "column"
    usual_targets = ()
    needs_target = True
    stacks_one = True

    def __init__(self, path: Path, options: OriginOptions) -> None:
        """Raises: UserError where a row is none of a table."""
        separator = options.separator and options.separator.replace(r"\t", "\t")
        names, rows, self._lines = _table(path, separator)
        words = map(list, zip(*rows, strict=True))
        columns = dict(zip(names, words, strict=True))
        super().__init__(str(path), columns, fingerprint=fingerprint_of([path]))
        self.names = names  # some may stand twice

    def choose(self, options: OriginOptions) -> tuple[list[str], str | None]:
        inputs, target = super().choose(options)
        self._columns |= {name: self._numbers(name, options.decimal) for name in inputs}
        return inputs, target

    def where(self, row: int, name: str) -> str:
        return f"{self.text} row {self._lines[row]}, column {name!r}"

    def _numbers(self, name: str, decimal: str) -> NDArray[np.float32]:
        words = [str(word) for word in self._columns[name]]
        numbers = [parse_number(word, decimal) for word in words]
        for row, (word, number) in enumerate(zip(words, numbers, strict=True)):
            if number is None:
                raise UserError(
                    f"{self.where(row, name)}: {_shortened(word)!r} is not a number\n"
                    f"{_remedy(word, decimal)}"
                )
        values = np.array(numbers, np.float64)
        if np.abs(values).max(initial=0) > np.finfo(np.float32).max:
            raise UserError(f"{self.text}, column {name!r} has numbers too large for float32")
        packed = values.astype(np.float32)
        self.notes += _rounded(name, words, packed)
        return packed


class _Table(NamedTuple):
    names: list[str]
    rows: list[list[str]]
    lines: list[int]
    """Line of the file in which each row ends, from 1 on."""


def _table(path: Path, separator: str | None) -> _Table:
    lines = io.StringIO(_text(path), newline="").readlines()
    above, separator = _above_header(lines, separator)
    if separator is None:
        separator = max(SEPARATORS, key=lambda mark: len(_header(lines[above:], mark)))
    reader = csv.reader(_without_mark(lines[above:]), delimiter=separator)
    rows, places = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                places.append(above + reader.line_num)
    except csv.Error as error:
        line = above + reader.line_num
        raise UserError(f"{path} row {line} is not a row of a table: {error}") from error
    if len(rows) < 2:
        raise UserError(f"{path} has no rows below its header")
    names = [name.strip() for name in rows[0]]
    for row, line in zip(rows[1:], places[1:], strict=True):
        if len(row) != len(names):
            raise UserError(
                f"{path} row {line} has {len(row)} values, the header {len(names)} names\nvalues "
                f"are separated by {separator!r}: if that is wrong, use --separator"
            )
    return _Table(names, rows[1:], places[1:])


def _above_header(lines: Sequence[str], separator: str | None) -> tuple[int, str | None]:
    """Return how many lines stand above the header, comments and Excel's `sep=;`, and the separator
    where one says it. A last comment above numbers is the header, as NumPy writes it."""
    number = 0
    while number < len(lines) - 1:
        line = lines[number]
        if line.lower().startswith("sep=") and len(line.strip("\r\n")) == 5:
            separator = separator or line[4]
        elif line.strip() and not line.startswith("#"):
            break
        number += 1
    if number and lines[number - 1].startswith("#"):
        mark = separator or max(SEPARATORS, key=lines[number].count)
        words, names = (_header(lines[at:], mark) for at in (number, number - 1))
        has_numbers = any(parse_number(w, decimal) is not None for w in words for decimal in ".,")
        if has_numbers and len(words) == len(names):
            return number - 1, separator
    return number, separator


def _without_mark(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines, the first without the `#` that makes it a comment."""
    for number, line in enumerate(lines):
        yield line.lstrip("# ") if number == 0 and line.startswith("#") else line


def _header(lines: Sequence[str], separator: str) -> list[str]:
    """Return the names of a header, of which quotes may hold separators and ends of lines."""
    try:
        return next(csv.reader(lines, delimiter=separator), [])
    except csv.Error:
        return []


def _text(path: Path) -> str:
    if b"\0" in read_unzipped(path, limit_bytes=2**20):
        raise UserError(f"{path} is not text: it holds bytes that are 0")
    limit = unpacked_limit(path.stat().st_size, TEXT_BYTES)
    content = read_unzipped(path, limit_bytes=limit + 1)
    if len(content) > limit:
        raise UserError(f"{path} is not a table: it unzips to more than {limit / 1e6:,.0f} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: byte {error.start} is not a character") from error


def _remedy(word: str, decimal: str) -> str:
    other = "," if decimal == "." else "."
    if parse_number(word, other) is not None:
        return f"say --decimal {other!r} if that sets off its decimals"
    return "leave the column out with --inputs, or fix the row"


def _rounded(name: str, words: Sequence[str], packed: NDArray[np.float32]) -> list[str]:
    """Return a note where a whole number became another."""
    for row in np.flatnonzero(np.abs(packed) >= LARGEST_EXACT).tolist():
        word = words[row].strip()
        if word.lstrip("+-").isdecimal() and int(word) != int(packed[row]):
            dtype = np.dtype(np.float32)
            return [rounded_note(f"column {name!r}", int(word), float(packed[row]), dtype)]
    return []


def _shortened(word: str) -> str:
    return word if len(word) <= 60 else f"{word[:60]}…"
