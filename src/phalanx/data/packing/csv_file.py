"""A table in a CSV file: columns of numbers are inputs, one column is the target."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.gzip_file import read_unzipped
from phalanx.data.packing.origin import ArraysOrigin, OriginOptions, fingerprint_of
from phalanx.data.packing.targets import TargetLocations, labelled, parse_targets
from phalanx.errors import UserError

MAX_EXPANSION, MIN_LIMIT_BYTES = 100, 64 * 2**20
"""A table unzips to ten or twenty times its size; what unzips to more than this is none."""


class _Table(NamedTuple):
    names: list[str]
    rows: list[list[str]]
    lines: list[int]
    """Of the file, from 1 on, where each row ends."""


def read_csv(path: Path, options: OriginOptions) -> ArraysOrigin:
    """A header, then a row a sample; separated by what stands between the names in the header: a
    comma, a semicolon or a tab. Inputs are float32. The table is held in memory.

    Raises: UserError naming row, column and value where something is no number.
    """
    names, rows, lines = _table(path)
    inputs, target = chosen_columns(path, names, options)
    values = np.empty((len(rows), len(inputs)), np.float32)
    for column, name in enumerate(inputs):
        words = [row[names.index(name)] for row in rows]
        values[:, column] = _numbers(path, name, words, lines)
    locations = TargetLocations(
        f"{path}, column {target!r}", lambda i: f"{path} row {lines[i]}, column {target!r}"
    )
    words = [row[names.index(target)] for row in rows]
    targets, classes = labelled(parse_targets(words, locations), locations, options.classes)
    return ArraysOrigin(
        f"{path}, target {target}",
        values,
        targets,
        classes=classes,
        fingerprint=fingerprint_of([path]),
    )


def _table(path: Path) -> _Table:
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text))
    rows, lines = [], []
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path} row {reader.line_num} is no row of a table: {error}") from error
    if len(rows) < 2:
        raise UserError(f"{path} has no rows below its header")
    names = [name.strip() for name in rows[0]]
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(names):
            raise UserError(
                f"{path} row {line} has {len(row)} values, the header {len(names)} names"
            )
    return _Table(names, rows[1:], lines[1:])


def _text(path: Path) -> str:
    if b"\0" in read_unzipped(path, limit_bytes=2**20):
        raise UserError(f"{path} is no text: it holds bytes that are 0")
    limit = max(MIN_LIMIT_BYTES, MAX_EXPANSION * path.stat().st_size)
    content = read_unzipped(path, limit_bytes=limit + 1)
    if len(content) > limit:
        raise UserError(f"{path} is no table: it unzips to more than {limit / 1e6:,.0f} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: byte {error.start} is no character") from error


def _separator(text: str) -> str:
    first = text.split("\n", 1)[0]
    return max(",;\t", key=first.count)


def _numbers(
    path: Path, name: str, words: Sequence[str], lines: Sequence[int]
) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(words, dtype=object).astype(np.float32)
    except ValueError:
        numbers = np.full(len(words), np.nan, np.float32)
    if np.isfinite(numbers).all():
        return numbers
    for line, word in zip(lines, words, strict=True):
        if not _is_finite(word):
            raise UserError(
                f"{path} row {line}, column {name!r}: {_shortened(word)!r} is not a number\n"
                "leave the column out with --inputs, or mend the row"
            )
    raise UserError(f"{path}, column {name!r} has numbers too large for float32")


def _shortened(word: str) -> str:
    return word if len(word) <= 60 else f"{word[:60]}…"


def _is_finite(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def chosen_columns(
    path: Path, names: Sequence[str], options: OriginOptions
) -> tuple[list[str], str]:
    """Names of the inputs, in the order of the table unless they were given, and of the target.

    Raises: UserError when one does not exist or the target is not named.
    """
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    if options.target is None:
        raise UserError(f"which column of {path} is the target? name one with --target: {listed}")
    for name in (*options.inputs, options.target):
        if name not in names:
            raise UserError(f"{path} has no column {name!r}: it has {listed}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise UserError(f"{path} has two columns {twice!r}")
    inputs = list(options.inputs) or [name for name in names if name != options.target]
    if not inputs or options.target in inputs:
        raise UserError(f"{path}: inputs {inputs} and target {options.target!r} must differ")
    return inputs, options.target
