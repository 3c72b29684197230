"""Checks of a program's values by their annotations: the arguments of `phalanx.start`, and the
fields of the dataclasses among them."""

from __future__ import annotations

import collections.abc
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from phalanx.errors import UserError

WORDS: dict[Any, str] = {
    bool: "is neither True nor False",
    int: "is no whole number",
    float: "is no number",
    str: "is no text",
    Path: "is no path",
    dict: "is no dictionary of arguments of DataLoader",
    collections.abc.Mapping: "is no mapping of options to values",
    collections.abc.Sequence: "is no sequence of names of optimizers",
    collections.abc.Callable: "is no function",
}
"""Words for a value that is none of a type."""
POSITIVE: dict[Any, str] = {int: f"{WORDS[int]} from 1", float: "is no finite number above 0"}


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, object], *, without: tuple[str, ...]
) -> None:
    """Raise UserError for the first argument whose value is none of the types of its annotation.

    A number is positive, but for a seed. without: arguments that have checks of their own.
    """
    hints = get_type_hints(function)
    for name, value in given.items():
        if name not in without and (
            words := misfit(value, hints[name], is_positive=name != "seed")
        ):
            raise UserError(f"{name}={shown(value)} {words}")


def check_fields(options: Any) -> None:
    """Raise UserError for the first field of a dataclass whose value is none of its types.

    A number is positive, unless its field has rules, as of `option_groups.ruled`.
    """
    hints = get_type_hints(type(options))
    for each in fields(options):
        value, is_positive = getattr(options, each.name), "rules" not in each.metadata
        if words := misfit(value, hints[each.name], is_positive=is_positive):
            raise UserError(f"{type(options).__name__}({each.name}={shown(value)}): it {words}")


def shown(value: object) -> str:
    """Return a value in at most one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def misfit(value: object, hint: Any, *, is_positive: bool = False) -> str:
    """Return what is wrong with a value of a type; empty: nothing. is_positive: numbers are."""
    kinds = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    if any(_fits(value, kind, is_positive=is_positive) for kind in kinds):
        return ""
    kind = next((k for k in kinds if k is Path), kinds[0])
    if get_origin(kind) is Literal:
        choices = [*["None"] * (NoneType in kinds), *get_args(kind)]
        if len(choices) == 2:
            return f"is neither {choices[0]} nor {choices[1]}"
        return f"is none of {', '.join(map(str, choices))}"
    if get_args(kind)[1:] not in ((), (Any,)) and get_origin(kind) is collections.abc.Mapping:
        return "is no mapping of names to numbers and texts"
    kind = get_origin(kind) or kind
    words = POSITIVE.get(kind) if is_positive else None
    return words or WORDS.get(kind) or f"is no phalanx.{kind.__name__}"


def _fits(value: object, kind: Any, *, is_positive: bool) -> bool:
    if kind in (None, NoneType):
        return value is None
    if kind is Any:
        return True
    if kind in (int, float):
        types = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, types):
            return False
        return not is_positive or 0 < value < math.inf
    if kind is Path:
        return isinstance(value, os.PathLike)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return type(value) in (str, int) and value in get_args(kind)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Sequence and isinstance(value, str):
        return False
    if not isinstance(value, origin):
        return False
    item, *of_values = get_args(kind) if origin in _CONTAINERS else (object,)
    items: Any = value if origin in _CONTAINERS else ()
    values = items.values() if of_values and of_values != [Any] else ()
    return all(isinstance(each, item) for each in items) and all(
        isinstance(each, *of_values) for each in values
    )


_CONTAINERS = (collections.abc.Mapping, collections.abc.Sequence, dict)
