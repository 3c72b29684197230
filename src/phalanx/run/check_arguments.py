"""Check of the arguments of `phalanx.start` by the types in its signature, before anything else."""

from __future__ import annotations

import collections.abc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from phalanx.errors import UserError

WORDS: dict[Any, str] = {
    bool: "is neither True nor False",
    int: "is no whole number from 1",
    float: "is no finite number above 0",
    str: "is no text",
    Path: "is no path",
    dict: "is no dictionary of arguments of DataLoader",
    collections.abc.Mapping: "is no mapping of options to values",
    collections.abc.Sequence: "is no sequence of names of optimizers",
    collections.abc.Callable: "is no function",
}
"""Words for a value that is none of a type."""


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, object], *, without: tuple[str, ...]
) -> None:
    """Raise UserError for the first argument whose value is none of the types of its annotation.

    A whole number is from 1, but for a seed. without: arguments that have checks of their own.
    """
    hints = get_type_hints(function)
    for name, value in given.items():
        if name in without:
            continue
        kinds = [hints[name]]
        if get_origin(hints[name]) in (Union, UnionType):
            kinds = list(get_args(hints[name]))
        if not any(_fits(value, kind, first=None if name == "seed" else 1) for kind in kinds):
            raise UserError(f"{name}={shown(value)} {_words(name, kinds)}")


def shown(value: object) -> str:
    """Return a value in at most one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def _fits(value: object, kind: Any, *, first: int | None) -> bool:
    if kind in (None, NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return type(value) is int and (first is None or value >= first)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, os.PathLike)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return isinstance(value, str)  # which one is checked where they are known
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Sequence and isinstance(value, str):
        return False
    items = get_args(kind)[:1] if origin in _CONTAINERS else ()
    return isinstance(value, origin) and all(isinstance(v, i) for i in items for v in value)


_CONTAINERS = (collections.abc.Mapping, collections.abc.Sequence, dict)


def _words(name: str, kinds: list[Any]) -> str:
    kind = next((k for k in kinds if k is Path), kinds[0])
    if get_origin(kind) is Literal:
        return f"is none of {', '.join(get_args(kind))}"
    if name == "seed":
        return "is no whole number"
    kind = get_origin(kind) or kind
    return WORDS.get(kind) or f"is no phalanx.{kind.__name__}"
