"""Groups of options: rules for each option, and refusal of options that a run does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from phalanx.errors import UserError

Group = TypeVar("Group")


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


class GivenOptions:
    """Options by name, as a user or a record gives them; each group of a run takes its own."""

    def __init__(self, values: Mapping[str, Any], run: str) -> None:
        """run: the words of the run in refusals."""
        self._values, self._run = dict(values), run

    def has(self, name: str) -> bool:
        """Return whether an option was given, and not taken yet."""
        return name in self._values

    def take(self, group: type[Group]) -> Group:
        """Return the group with the values that were given.

        Raises: UserError for a value out of its range, or one that the group would ignore.
        """
        names = [name for name in default_options(group) if name in self._values]
        taken: Any = group(**{name: self._values.pop(name) for name in names})
        for each in fields(taken):
            value = getattr(taken, each.name)
            for rule in each.metadata.get("rules", ()):
                if isinstance(rule, Needs):
                    if not rule.holds(taken):
                        self.refuse(each.name, value, each.default, rule.words)
                elif value is not None and not rule.holds(value):
                    raise UserError(f"{option(each.name)} {rule.words}, not {value}")
        return taken  # type: ignore[no-any-return]

    def take_if(self, applies: bool, group: type[Group], words: str) -> Group | None:
        """Return the group, or None where it does not apply to the run.

        words: the runs that it is for.
        Raises: UserError for a bad value, or when an option was given that does not apply.
        """
        taken = self.take(group)
        if applies:
            return taken
        for name, default in default_options(group).items():
            self.refuse(name, getattr(taken, name), default, words)
        return None

    def refuse(self, name: str, value: object, default: object, words: str) -> None:
        """Raise UserError unless the option has its default. words: what it is for."""
        if value != default:
            given = option(name) if value is True else f"{option(name)} {value}"
            raise UserError(f"{given} means nothing for {self._run}: it is for {words}")

    def check_empty(self) -> None:
        """Raise TypeError when a name is no option of any group."""
        if self._values:
            raise TypeError(f"no such options: {', '.join(self._values)}")


def default_options(*groups: Any) -> dict[str, Any]:
    """Return the defaults of all options of `groups` by name."""
    return {each.name: each.default for group in groups for each in fields(group)}


def flatten(options: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a group and of the groups within it, by name."""
    for each in fields(options):
        value = getattr(options, each.name)
        if is_dataclass(value):
            yield from flatten(value)
        else:
            yield each.name, value
