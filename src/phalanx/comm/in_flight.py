"""Messages that were given up while MPI was still at work on them, and the memory they need.

MPI writes to the buffer of a receive until the receive is complete or cancelled, and reads that of
a send, whoever still holds the request. So the engine keeps both until MPI is done with them.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

CANCEL_S = 0.5  # in which MPI says whether a receive was cancelled or has completed


class Unfinished(Protocol):
    """What MPI is at work on, with the buffers that it needs."""

    is_done: bool

    def peers(self) -> Sequence[int]:
        """Ranks of which each must do something for it."""

    def advance(self) -> bool:
        """Move it on; whether that brought it nearer to its end."""

    def cancel(self) -> None:
        """Give it up: MPI need not complete it. Its buffers are in use until `settle` says so."""

    def settle(self) -> bool:
        """Whether MPI needs none of its buffers any more; after `cancel`."""


class Live(Protocol):
    """A message that somebody still holds."""

    def end(self, error: Exception) -> None:
        """Give it up, if it is not over: `error` for whoever asks."""


class InFlight:
    """The messages of a group, and what it has given up and MPI has not."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[Live] = weakref.WeakSet()
        self._kept: list[Unfinished] = []
        self._process = os.getpid()

    def add(self, message: Live) -> None:
        self._live.add(message)

    def give_up(self, unfinished: Unfinished) -> None:
        """Cancel it, and keep its buffers until MPI is done with them. Does not wait."""
        if self._process != os.getpid():
            keep_for_ever(unfinished)  # a forked child must not touch MPI
            return
        unfinished.cancel()
        if not unfinished.settle():
            self._kept.append(unfinished)

    def sweep(self) -> None:
        """Let go of what MPI has finished with."""
        if self._kept:
            self._kept = [unfinished for unfinished in self._kept if not unfinished.settle()]

    def close(self, error: Exception) -> None:
        """The group ends: what is not over ends with `error`, and what MPI does not finish soon is
        kept as long as the process lives."""
        for message in list(self._live):
            message.end(error)
        until_s = time.monotonic() + CANCEL_S
        self.sweep()
        while self._kept and time.monotonic() < until_s:
            time.sleep(1e-3)
            self.sweep()
        for unfinished in self._kept:
            keep_for_ever(unfinished)
        self._kept = []


def keep_for_ever(unfinished: object) -> None:
    """Never free it: MPI may write to its memory as long as the process lives."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(unfinished))
