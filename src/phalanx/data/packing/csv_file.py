"""A table in a CSV file: columns of numbers are inputs, one column is the target."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.data.packing.columns import chosen_columns
from phalanx.data.packing.origin import ArraysOrigin, Wanted, fingerprint_of
from phalanx.data.packing.targets import labelled
from phalanx.data.unzip import read_unzipped
from phalanx.errors import UserError


def read_csv(path: Path, wanted: Wanted) -> ArraysOrigin:
    """A header, then a row a sample; separated by what stands between the names in the header: a
    comma, a semicolon or a tab. Inputs are float32. The table is held in memory.

    Raises: UserError naming row, column and value where something is no number.
    """
    names, rows = _table(path)
    inputs, target = chosen_columns(path, names, wanted)
    values = np.empty((len(rows), len(inputs)), np.float32)
    for column, name in enumerate(inputs):
        values[:, column] = _numbers(path, name, [row[names.index(name)] for row in rows])
    targets, classes = labelled(_target_values([row[names.index(target)] for row in rows]))
    return ArraysOrigin(
        f"{path}, target {target}",
        values,
        targets,
        classes=classes,
        fingerprint=fingerprint_of([path]),
    )


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = read_unzipped(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: byte {error.start} is no character") from error
    first = text.split("\n", 1)[0]
    separator = max(",;\t", key=first.count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise UserError(f"{path} has no rows below its header")
    names = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise UserError(
                f"{path} row {number} has {len(row)} values, the header {len(names)} names"
            )
    return names, rows[1:]


def _numbers(path: Path, name: str, words: Sequence[str]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            numbers = np.array(words, dtype=object).astype(np.float32)
    except ValueError:
        numbers = np.full(len(words), np.nan, np.float32)
    if np.isfinite(numbers).all():
        return numbers
    for row, word in enumerate(words, start=2):
        if not _is_finite(word):
            raise UserError(
                f"{path} row {row}, column {name!r}: {word!r} is not a number\n"
                "leave the column out with --inputs, or mend the row"
            )
    raise UserError(f"{path}, column {name!r} has numbers too large for float32")


def _is_finite(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _target_values(words: Sequence[str]) -> NDArray[Any]:
    """Whole numbers where all are, else floats, else text."""
    for kind in (np.int64, np.float64):
        try:
            values = np.array([word.strip() for word in words], dtype=object).astype(kind)
        except (ValueError, OverflowError):
            continue
        if np.isfinite(values).all():
            return values
    return np.array([word.strip() for word in words])
