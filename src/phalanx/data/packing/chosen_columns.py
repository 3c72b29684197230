"""Choice of the columns of a table that are inputs and target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.data.columns import is_index, listed
from phalanx.data.packing.origin import OriginOptions, SkippedItems, reported
from phalanx.errors import UserError


def chosen_columns(
    path: Path, names: Sequence[str], options: OriginOptions
) -> tuple[list[str], str]:
    """Names of the inputs, in the order of the table unless they were given, and of the target. An
    index that pandas wrote is no input unless it is named.

    Raises: UserError when one does not exist or the target is not named.
    """
    if options.target is None:
        raise UserError(
            f"which column of {path} is the target? name one with --target: {listed(names)}"
        )
    for name in (*options.inputs, options.target):
        if name not in names:
            raise UserError(f"{path} has no column {name!r}: it has {listed(names)}")
    inputs = list(options.inputs) or [
        name for name in names if name != options.target and not is_index(name)
    ]
    for name in (*inputs, options.target):
        if list(names).count(name) > 1:
            raise UserError(f"{path} has two columns {name!r}")
    if not inputs or options.target in inputs:
        raise UserError(f"{path}: inputs {inputs} and target {options.target!r} must differ")
    return inputs, options.target


def index_columns(names: Sequence[str], target: str) -> list[SkippedItems]:
    """Return the columns of an index, which are not packed, for the summary."""
    index = SkippedItems("columns that are the rows' index or have no name")
    for name in names:
        if is_index(name) and name != target:
            index.add(repr(name))
    return reported([index])
