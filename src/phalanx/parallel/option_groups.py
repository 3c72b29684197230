"""Groups of options: rules for each option, and refusal of options that a run does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from phalanx.errors import UserError


def option(name: str) -> str:
    """Return the option as the user writes it."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class ValueRange:
    """The values that an option may have."""

    words: str
    holds: Callable[[Any], bool]


AT_LEAST_ONE = ValueRange("must be at least 1", lambda value: value >= 1)
POSITIVE = ValueRange("must be positive", lambda value: value > 0)
NOT_NEGATIVE = ValueRange("must not be negative", lambda value: value >= 0)
BELOW_ONE = ValueRange("must be in [0, 1)", lambda value: 0 <= value < 1)
FRACTION = ValueRange("must be in (0, 1]", lambda value: 0 < value <= 1)


@dataclass(frozen=True)
class Needs:
    """Other options of its group that an option is for."""

    words: str
    holds: Callable[[Any], bool]


def ruled(default: Any, *rules: ValueRange | Needs) -> Any:
    """Return a dataclass field whose value must keep `rules`, in their order."""
    return field(default=default, metadata={"rules": rules})


def check_rules(options: Any, run: str) -> None:
    """Raise UserError for a value out of its range, or one that other options make useless.

    options: a dataclass, also of several groups. run: the words of the run in refusals.
    """
    for each in fields(options):
        value = getattr(options, each.name)
        for rule in each.metadata.get("rules", ()):
            if isinstance(rule, Needs):
                if not rule.holds(options):
                    refuse(options, [each.name], rule.words, run)
            elif value is not None and not rule.holds(value):
                raise UserError(f"{option(each.name)} {rule.words}, not {value}")


def refuse(options: Any, names: Iterable[str], words: str, run: str) -> None:
    """Raise UserError unless these options have their defaults. words: the runs they are for."""
    defaults = default_options(options)
    for name in names:
        if (value := getattr(options, name)) != defaults[name]:
            given = option(name) if value is True else f"{option(name)} {value}"
            raise UserError(f"{given} means nothing for {run}: it is for {words}")


def default_options(*groups: Any) -> dict[str, Any]:
    """Return the defaults of all options of `groups` by name."""
    return {each.name: each.default for group in groups for each in fields(group)}
