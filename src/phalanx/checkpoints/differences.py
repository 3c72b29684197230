"""Differences between a checkpoint and the run that resumes from it, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from phalanx.checkpoints.manifest import Value

MAX_NAMED = 3
"""Tensors that an error lists."""


class TensorSpec(Protocol):
    """Type and shape of a tensor."""

    @property
    def code(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def differing_tensors(there: Mapping[str, TensorSpec], here: Mapping[str, TensorSpec]) -> str:
    """Return which tensors differ, the first few by name; empty: none.

    there: of the checkpoint. here: of the run's model.
    """
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    lines = [
        f"{name} is {_described(there.get(name), here.get(name))} there, "
        f"{_described(here.get(name), there.get(name))} here"
        for name in names[:MAX_NAMED]
    ]
    more = len(names) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


def _described(spec: TensorSpec | None, other: TensorSpec | None) -> str:
    """Return the shape of a tensor, and its type where the other's is another."""
    if spec is None:
        return "missing"
    is_same_type = other is None or other.code == spec.code
    return f"{spec.shape}" if is_same_type else f"{spec.shape} {spec.code}"


def differing_values(there: Mapping[str, Value], here: Mapping[str, Value]) -> list[str]:
    """Return a phrase for each value that differs, by its name; a name that is missing on one side
    has the value None there."""
    return [
        f"{name} {_shown(there.get(name))} there, {_shown(here.get(name))} here"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]


def _shown(value: Value) -> str:
    return "none" if value is None or value == "" else str(value)
