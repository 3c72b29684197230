"""Runs whose loop has begun, and whose ranks stay together for what the program does after it.

A program evaluates its model after the loop, on any number of ranks, without a word about closing.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from phalanx.run.failure import end_program


class Begun(Protocol):
    """A run whose loop has begun."""

    @property
    def is_over(self) -> bool:
        """Return whether its loop has ended or was left."""

    def close_unless_failed(self) -> None:
        """Part from the other ranks, unless an error has ended the loop. Collective."""


_BEGUN: list[Begun] = []


def close_later(run: Begun) -> None:
    """Close the run when the program ends, or another one starts after the end of its loop."""
    _BEGUN.append(run)
    atexit.register(_close_at_exit, os.getpid())


def close_ended(*, at_exit: bool = False) -> None:
    """Close the runs whose loop is over, in their order. Collective. at_exit: all of them."""
    for run in [*_BEGUN]:
        if at_exit or run.is_over:
            _BEGUN.remove(run)
            run.close_unless_failed()


def _close_at_exit(pid: int) -> None:
    if os.getpid() != pid:
        return
    try:
        close_ended(at_exit=True)
    except Exception as error:  # noqa: BLE001  Python would print it, and the peers would wait
        end_program(type(error), error, error.__traceback__)
