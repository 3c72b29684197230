"""Defaults of a program that whoever starts it may set: folder of records, strategy, seed.

`phalanx study scaling --program` runs one program in many ways by these; what the program itself
gives is never changed.
"""

from __future__ import annotations

import os
from typing import Any

from phalanx.errors import UserError

RUN_DIR = "PHALANX_RUN_DIR"
"""Folder of the records, where the program names none."""

STRATEGY = "PHALANX_STRATEGY"
"""Strategy, where the program leaves it to `auto`."""

SEED = "PHALANX_SEED"
"""Seed, where the program gives none."""


def strategy_of(given: Any) -> Any:
    """Return the strategy that is asked for."""
    return os.environ.get(STRATEGY, given) if given == "auto" else given


def seed_of(given: int | None) -> int:
    """Return the seed that is asked for.

    Raises: UserError where the variable is no whole number.
    """
    if given is not None:
        return given
    text = os.environ.get(SEED, "0")
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{SEED}={text!r} is no whole number") from error
