"""Runs whose loop has ended, and whose ranks stay together for what the program does with them.

A program evaluates its model after the loop, on any number of ranks, without a word about closing.
"""

from __future__ import annotations

import atexit
from typing import Protocol

from phalanx.run.failure import end_program


class Closable(Protocol):
    """A run, or the end of one that was left early."""

    def close(self) -> None:
        """Part from the other ranks. Collective."""


_ENDED: list[Closable] = []


def close_later(run: Closable) -> None:
    """Close the run when another one starts, or the program ends."""
    _ENDED.append(run)
    atexit.register(_close_at_exit)


def close_ended() -> None:
    """Close the runs whose loop has ended, in their order. Collective."""
    while _ENDED:
        _ENDED.pop(0).close()


def _close_at_exit() -> None:
    try:
        close_ended()
    except Exception as error:  # noqa: BLE001  Python would print it, and the peers would wait
        end_program(type(error), error, error.__traceback__)
