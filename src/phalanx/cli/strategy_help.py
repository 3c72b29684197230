"""Panels of `--help` for options that some strategies have: another strategy hides them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import get_args

from cyclopts import Group
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions

from phalanx.parallel.options import StrategyName

PARALLELISM = 4
"""Sort key of the panel of all strategies."""
STRATEGIES = get_args(StrategyName)
BITWISE = frozenset(("--bitwise", "--survive"))


class StrategyPanel:
    """Prints a panel, unless the command line names a strategy without these options."""

    def __init__(self, *strategies: str, also_bitwise: bool = False) -> None:
        """also_bitwise: bitwise runs of any strategy have some of them, too."""
        self._strategies, self._also_bitwise = strategies, also_bitwise

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print the panel where it applies; called by cyclopts."""
        words = sys.argv[1:]
        named = strategy_named(words)
        is_bitwise = self._also_bitwise and not BITWISE.isdisjoint(words)
        if named is None or named in self._strategies or is_bitwise:
            DefaultFormatter()(console, options, panel)


def strategy_panel(*strategies: str, place: int, also_bitwise: bool = False) -> Group:
    """Return the panel of what these strategies have.

    Args:
        strategies: Their names, at least one.
        place: Where it stands among the panels of strategies, which follow `PARALLELISM`.
        also_bitwise: Bitwise runs of any strategy have some of the options, too.
    """
    *most, last = strategies
    title = f"Strategies {', '.join(most)} and {last}" if most else f"Strategy {last}"
    formatter = StrategyPanel(*strategies, also_bitwise=also_bitwise)
    return Group(title, sort_key=PARALLELISM + place / 10, help_formatter=formatter)


def strategy_named(words: Sequence[str]) -> str | None:
    """Return the strategy that a command line names; None where it names none that there is.

    A mesh alone means the strategy of that name.
    """
    named = None
    for place, word in enumerate(words):
        name, has_value, value = word.partition("=")
        following = value if has_value else next(iter(words[place + 1 :]), None)
        if name == "--strategy":
            return following if following in STRATEGIES else None
        if name == "--mesh":
            named = "mesh"
    return named
