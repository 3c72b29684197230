"""Targets as numbers: of classes from 0 on, or of a quantity."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import UserError

MAX_CLASSES = 1_000
"""More are taken only where the user says how many there are."""

MAX_NAME_LETTERS = 200
MAX_LISTED = 5

_NUMBERS = {
    mark: re.compile(
        rf"[+-]?([0-9]+{re.escape(mark)}?[0-9]*|{re.escape(mark)}[0-9]+)([eE][+-]?[0-9]+)?"
    )
    for mark in ".,"
}
"""A number, by what sets off its decimals."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_MISSING = frozenset({"", "nan", "na", "n/a", "#n/a", "null", "none", "nil", "?", "-", ".", "inf"})
"""Words, in lower case, by which tables say that a number is missing."""


class TargetLocations(NamedTuple):
    """Locations of targets in their source, for error messages."""

    source: str
    at: Callable[[int], str]
    """Describes the location of one target, by its number."""


def parse_targets(
    words: Sequence[str], locations: TargetLocations, decimal: str = "."
) -> NDArray[Any]:
    """Return whole numbers where all words are, else floats where all are numbers, else text.

    decimal: what sets off decimals, a point or a comma.
    Raises: UserError naming the first word that is empty, not finite, or no number among numbers.
    """
    words = [word.strip() for word in words]
    _check_words(words, locations)
    is_whole = [_WHOLE.fullmatch(word) is not None for word in words]
    if all(is_whole):
        return _as_int64([int(word) for word in words], locations)
    numbers = [parse_number(word, decimal) for word in words]
    unlike = [i for i, number in enumerate(numbers) if number is None]
    if not unlike:
        return np.array(numbers, np.float64)
    has_fractions = any(
        number is not None and not whole for number, whole in zip(numbers, is_whole, strict=True)
    )
    is_mixed = len(unlike) < len(words)
    odd = next((i for i in unlike if has_fractions or words[i].lower() in _MISSING), None)
    if is_mixed and odd is not None:
        raise UserError(
            f"{locations.at(odd)}: the target {words[odd]!r} is not a finite number, as those of "
            "other samples are\nmend it, or leave that sample out"
        )
    return np.array(words)


def labelled(
    values: NDArray[Any], locations: TargetLocations, num_classes: int | None = None
) -> tuple[NDArray[Any], list[str]]:
    """Return (n, …) targets and the names of their classes.

    Text: a class for each, in the order of the alphabet. Whole numbers from 0 on are classes
    already; negative ones are put in order. Floats are quantities: float32, and no classes.
    values: (n,) of text, whole numbers or floats; (n, …) whole numbers are taken as they are.
    num_classes: as the user says; 0: none, the targets are quantities. None: as many as there are,
    each with a sample, and up to `MAX_CLASSES`.
    Raises: UserError when they cannot be meant so, with the option that says it.
    """
    if values.dtype.kind in "biu":
        values = _as_int64(values, locations)
    if num_classes == 0 or (values.dtype.kind == "f" and num_classes is None):
        return _quantities(values, locations), []
    if values.dtype.kind == "f":
        if not (np.isfinite(values).all() and (values == np.floor(values)).all()):
            raise UserError(
                f"{locations.source}: targets are fractions, which are not {num_classes} classes"
            )
        values = values.astype(np.int64)
    if values.dtype.kind not in "biu":
        return _named(values, locations, num_classes)
    if not values.size or (values.min() < 0 and values.ndim > 1):
        return values, []
    if values.min() < 0:
        return _named(values, locations, num_classes)
    return values, _numbered(values, locations, num_classes)


def _numbered(
    values: NDArray[np.int64], locations: TargetLocations, num_classes: int | None
) -> list[str]:
    found = int(values.max()) + 1
    if num_classes is not None and found > num_classes:
        first = int(np.argmax(values.reshape(len(values), -1).max(1) >= num_classes))
        raise UserError(
            f"{locations.at(first)}: the target is {found - 1}, not one of {num_classes} classes"
        )
    if num_classes is None and found > MAX_CLASSES:
        raise UserError(_how_many(locations, found, f"targets go up to {found - 1:,}"))
    if num_classes is None and values.ndim == 1:
        empty = np.flatnonzero(np.bincount(values, minlength=found) == 0).tolist()
        if empty:
            listed = ", ".join(map(str, empty[:MAX_LISTED])) + (", …" * (len(empty) > MAX_LISTED))
            fault = f"targets go up to {found - 1}, and no sample has {listed}"
            raise UserError(_how_many(locations, found, fault))
    return [str(i) for i in range(num_classes or found)]


def _named(
    values: NDArray[Any], locations: TargetLocations, num_classes: int | None
) -> tuple[NDArray[np.int64], list[str]]:
    if values.dtype.kind not in "biu":
        _check_words(values.tolist(), locations)
    names, targets = np.unique(values, return_inverse=True)
    if num_classes is None and len(names) > MAX_CLASSES:
        raise UserError(
            _how_many(locations, len(names), f"targets have {len(names):,} different values")
        )
    if num_classes is not None and len(names) != num_classes:
        raise UserError(
            f"{locations.source}: targets have {len(names):,} different values, not {num_classes:,}"
        )
    return targets.astype(np.int64), [str(name) for name in names.tolist()]


def _check_words(words: Sequence[str], locations: TargetLocations) -> None:
    for i, word in enumerate(words):
        if not word.strip() or word.lower() == "nan":
            what = f"the target is {word!r}" if word.strip() else "there is no target"
            raise UserError(f"{locations.at(i)}: {what}\nmend it, or leave that sample out")
        if len(word) > MAX_NAME_LETTERS:
            raise UserError(
                f"{locations.at(i)}: {word[:20]!r}… of {len(word):,} letters is not a target"
            )


def _quantities(values: NDArray[Any], locations: TargetLocations) -> NDArray[np.float32]:
    if values.dtype.kind not in "biuf":
        raise UserError(
            f"{locations.source}: the target {str(values.flat[0])!r} is text, not a quantity"
        )
    with np.errstate(over="ignore"):
        quantities = values.astype(np.float32)
    is_finite = np.isfinite(quantities).reshape(len(quantities), -1).all(1)
    if not is_finite.all():
        first = int(np.argmin(is_finite))
        value = values[first] if values.ndim == 1 else "not all"
        raise UserError(
            f"{locations.at(first)}: the target is {value}, not a finite number of float32\nmend "
            "it, or leave that sample out"
        )
    return quantities


def _as_int64(
    values: Sequence[int] | NDArray[Any], locations: TargetLocations
) -> NDArray[np.int64]:
    if isinstance(values, np.ndarray) and (values.size == 0 or int(values.max()) < 2**63):
        return values.astype(np.int64)
    try:
        return np.array(values).astype(np.int64, casting="safe")
    except (OverflowError, TypeError):
        first = next(i for i, value in enumerate(values) if not _fits(value))
        raise UserError(
            f"{locations.at(first)}: the target {values[first]} is out of range"
        ) from None


def _fits(value: Any) -> bool:
    return int(np.max(value)) < 2**63 and int(np.min(value)) >= -(2**63)


def _how_many(locations: TargetLocations, found: int, fault: str) -> str:
    return (
        f"{locations.source}: {fault}\nuse --classes {found} if these are classes, or --classes 0 "
        "if they are quantities"
    )


def parse_number(word: str, decimal: str = ".") -> float | None:
    """Return the number that a word is, as tables write them; None where it is none, or not finite.

    Python would take more: `12_34`, digits of other scripts, `infinity`.
    """
    word = word.strip(" \t")
    if not _NUMBERS[decimal].fullmatch(word):
        return None
    number = float(word.replace(",", "."))
    return number if np.isfinite(number) else None
