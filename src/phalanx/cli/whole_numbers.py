"""Whole numbers on the command line, which cyclopts rounds: `--steps 2.5` was taken as 2."""

from __future__ import annotations

from typing import Any

from cyclopts import _convert

_CONVERTERS: dict[Any, Any] = getattr(_convert, "_converters", {})
_rounded = _CONVERTERS.get(int, int)


def refuse_fractions() -> None:
    """Have every option that takes a whole number refuse another one. Before any parsing."""
    _CONVERTERS[int] = whole_number


def whole_number(text: str) -> int:
    """Return the number. Raises: ValueError where it is no whole one."""
    number: int = _rounded(text)
    if "." in text and float(text) != number:
        raise ValueError(f"{text} is not a whole number")
    return number
