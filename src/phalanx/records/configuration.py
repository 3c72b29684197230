"""The options of a run that decide its numbers or its times, and the difference of two sets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PLACES = frozenset(
    {
        *("data_root", "data_dir", "stage", "run_dir", "study_dir", "checkpoint_dir", "output"),
        *("resume", "keep", "keep_staged", "timeout_s", "trace"),
    }
)
"""Options that say where something is kept and how long is waited. All others decide: an option
that nobody has thought of here makes another configuration, it is never averaged away."""

Configuration = Mapping[str, object]


def deciding_options(config: Configuration) -> dict[str, object]:
    """The options that decide, as they come back from a document (lists for tuples)."""
    kept = {name: value for name, value in config.items() if name not in PLACES}
    plain: dict[str, object] = msgspec.to_builtins(kept, str_keys=True)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}


def shared(configurations: Mapping[str, Configuration]) -> dict[str, object]:
    """The options that all of them have with one value."""
    if not configurations:
        return {}
    first, *rest = configurations.values()
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in rest)
    }


def differences(before: Configuration, now: Configuration) -> list[str]:
    """`--epochs 2, now 50` for each option that differs, in the order of `now`."""
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
