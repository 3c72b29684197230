"""The options of a run that decide its numbers or its times, and the difference of two sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from phalanx.errors import UserError

PLACES = frozenset(
    {
        *("data_root", "data_dir", "stage", "run_dir", "study_dir", "checkpoint_dir", "output"),
        *("resume", "keep", "keep_staged", "timeout_s", "trace"),
    }
)
"""Options that say where something is kept and how long is waited. All others decide: an option
that nobody has thought of here makes another configuration, it is never averaged away."""

Configuration = Mapping[str, object]


class RecordedOptions:
    """Base of dataclasses of options that are written into a record, and read by its ranks."""

    def as_record(self) -> dict[str, Any]:
        """Return the options as plain values; paths are text."""
        record: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the options of a decoded record; other names in it are ignored."""
        return msgspec.convert(record, cls, dec_hook=lambda kind, text: kind(text))


MOST = 2**53
"""Whole numbers up to here are whole as floats, too."""


def check_values(options: object, *names: str) -> None:
    """Check options of several values; None stands for a default.

    Raises: UserError for one without a value, or with a value twice.
    """
    for name in names:
        values = getattr(options, name)
        if values is None:
            continue
        if not values:
            raise UserError(f"{_option(name)} needs at least one value")
        if len(set(values)) != len(values):
            raise UserError(f"{_option(name)} has a value twice: {' '.join(map(str, values))}")


def check_counts(options: object, least: int, *names: str) -> None:
    """Raises: UserError for a number below `least`, or one that nothing can count to, of options
    with one or several; None stands for a default."""
    for name, value in _numbers(options, names):
        if value < least:
            raise UserError(f"{_option(name)} must be at least {least}, not {value}")
        if value > MOST:
            raise UserError(f"{_option(name)} must be at most {MOST}, not {value}")


def check_positive(options: object, *names: str) -> None:
    """Raises: UserError for a number that is not above 0 or not finite, as `check_counts`."""
    for name, value in _numbers(options, names):
        if not 0 < value < math.inf:
            raise UserError(f"{_option(name)} must be positive, not {value:g}")


def _numbers(options: object, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        found = getattr(options, name)
        for value in found if isinstance(found, tuple) else (found,):
            if value is not None:
                yield name, value


def deciding_options(config: Configuration) -> dict[str, object]:
    """Return the options that decide, as they come back from a document (lists for tuples)."""
    kept = {name: value for name, value in config.items() if name not in PLACES}
    plain: dict[str, object] = msgspec.to_builtins(kept, str_keys=True)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


def shared(configurations: Mapping[str, Configuration]) -> dict[str, object]:
    """Return the options that have one value in all of them."""
    if not configurations:
        return {}
    first, *rest = configurations.values()
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in rest)
    }


def differences(before: Configuration, now: Configuration) -> list[str]:
    """Return `--epochs 2, now 50` for each option that differs, in the order of `now`."""
    names = dict.fromkeys([*now, *before])
    return [
        f"{_option(name)} {_shown(before, name)}, now {_shown(now, name)}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}" if name.islower() and " " not in name else name


def _shown(config: Configuration, name: str) -> str:
    value = config.get(name)
    if value is None:
        return "default"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
