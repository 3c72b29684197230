"""Runs whose loop has ended, and whose ranks stay together for what the program does with them.

A program evaluates its model after the loop, on any number of ranks, without a word about closing.
"""

from __future__ import annotations

import atexit
from typing import Protocol


class Closable(Protocol):
    """A run, as this room sees it."""

    def close(self) -> None:
        """Part from the other ranks. Collective."""


_ENDED: list[Closable] = []


def close_later(run: Closable) -> None:
    """Close the run when another one starts, or the program ends."""
    _ENDED.append(run)
    atexit.register(close_ended)


def close_ended() -> None:
    """Close the runs whose loop has ended, in their order. Collective."""
    while _ENDED:
        _ENDED.pop(0).close()
