"""Defaults of a program that whoever starts it may set: strategy, seed, rebalancing.

`phalanx study scaling --program` runs one program in many ways by these; what the program itself
gives is never changed.
"""

from __future__ import annotations

import os
from typing import Any

from phalanx.errors import UserError

STRATEGY = "PHALANX_STRATEGY"
"""Strategy, where the program leaves it to `auto`."""

REBALANCE = "PHALANX_REBALANCE"
"""1: slow ranks are given fewer micro-batches, where the program does not say."""

SEED = "PHALANX_SEED"
"""Seed, where the program gives none."""


def strategy_of(given: Any) -> Any:
    """Return the strategy that is asked for."""
    return os.environ.get(STRATEGY, given) if given == "auto" else given


def rebalances(given: object, *, bitwise: bool) -> bool:
    """Return whether slow ranks are given fewer micro-batches.

    Raises: UserError where the results would depend on that.
    """
    if given is not None and not isinstance(given, bool):
        raise UserError(f"rebalance={given!r} is neither True nor False")
    is_asked = os.environ.get(REBALANCE, "0") not in ("", "0") if given is None else given
    if is_asked and not bitwise:
        raise UserError(
            'strategy_options={"rebalance": True}, or --rebalance, moves micro-batches between '
            "ranks, which would change the order of sums: also give bitwise=True, or launch with "
            "--survive"
        )
    return is_asked


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
        raise UserError(f"{SEED}={text!r} is not a whole number") from error
