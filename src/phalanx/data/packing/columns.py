"""Choice of the input columns and the target column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.data.packing.origin import OriginOptions
from phalanx.errors import UserError


def chosen_columns(
    path: Path, names: Sequence[str], options: OriginOptions
) -> tuple[list[str], str]:
    """Names of the inputs, in the order of the table unless they were given, and of the target.

    Raises: UserError when one does not exist or the target is not named.
    """
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    if options.target is None:
        raise UserError(f"which column of {path} is the target? name one with --target: {listed}")
    for name in (*options.inputs, options.target):
        if name not in names:
            raise UserError(f"{path} has no column {name!r}: it has {listed}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise UserError(f"{path} has two columns {twice!r}")
    inputs = list(options.inputs) or [name for name in names if name != options.target]
    if not inputs or options.target in inputs:
        raise UserError(f"{path}: inputs {inputs} and target {options.target!r} must differ")
    return inputs, options.target
