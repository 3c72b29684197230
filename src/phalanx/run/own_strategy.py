"""Strategies that a program brings itself, in place of a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.errors import UserError
from phalanx.parallel.make import JobRanks
from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup

OwnStrategy = Callable[..., Strategy]
"""A class or a function of (group, step options), and of the program's `strategy_options`. The
group has the `World` of all ranks as `group.world`."""


def name_of(make: OwnStrategy) -> str:
    """Return what records and errors call the strategy."""
    return getattr(make, "__name__", type(make).__name__)


def check_own(make: OwnStrategy, *, is_bitwise: bool, is_on_gpu: bool) -> None:
    """Raise UserError for arguments of `phalanx.start` that only its own strategies know."""
    if is_bitwise:
        raise UserError(
            f"strategy={name_of(make)}: bitwise=True and --survive sum gradients in a fixed order, "
            'which is theirs: leave them out, or take strategy="mpi"'
        )
    if is_on_gpu:
        raise UserError(
            f"strategy={name_of(make)} of the program is for the CPU: leave device= out"
        )


def make_own(
    make: OwnStrategy, options: Mapping[str, Any], ranks: JobRanks, *, step: StepOptions
) -> Strategy:
    """Return the program's strategy on all ranks. Collective.

    Raises: UserError for what makes no strategy, or does not take these options.
    """
    group = WorldGroup(ranks.join())
    try:
        made = make(group, step, **options)
    except TypeError as error:
        group.close()
        raise UserError(
            f"strategy={name_of(make)}: {error}: it is called with the group, the step's options "
            "and strategy_options"
        ) from error
    if not isinstance(made, Strategy):
        group.close()
        raise UserError(
            f"strategy={name_of(make)} returned a {type(made).__name__}, no phalanx.Strategy: see "
            "docs/own_strategy.md"
        )
    return made
