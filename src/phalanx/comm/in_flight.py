"""Messages that were given up while MPI was still at work on them, and the memory they need.

MPI writes to the buffer of a receive until the receive is complete or cancelled, and reads that of
a send, whoever still holds the request. So the engine keeps both until MPI is done with them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

CANCEL_S = 0.5  # in which MPI says whether a receive was cancelled or has completed


class Unfinished(Protocol):
    """An operation that MPI has not completed, with the buffers that it uses."""

    is_done: bool

    def peers(self) -> Sequence[int]:
        """Ranks of which each must do something for it."""

    def advance(self) -> bool:
        """Make progress; return whether any was made."""

    def cancel(self) -> None:
        """Give it up: MPI need not complete it. Its buffers are in use until `settle` says so."""

    def settle(self) -> bool:
        """Return whether MPI no longer uses its buffers; called after `cancel`."""


class Live(Protocol):
    """A message that somebody still holds."""

    def end(self, error: Exception) -> None:
        """Give it up, if it is not over: `error` for whoever asks."""


class InFlight:
    """The messages of a group, and what it has given up and MPI has not."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[Live] = weakref.WeakSet()
        self._given_up: deque[Unfinished] = deque()  # by any thread, also within `sweep`
        self._kept: list[Unfinished] = []  # of the thread that has `_settling`
        self._settling = threading.Lock()
        self._process = os.getpid()

    def add(self, message: Live) -> None:
        self._live.add(message)

    def give_up(self, unfinished: Unfinished) -> None:
        """Cancel it, and keep its buffers until MPI is done with them. Does not wait. On any
        thread, at any time: a message is given up when nobody holds it any more."""
        if self._process != os.getpid() or _has_ended():
            keep_for_ever(unfinished)  # neither a forked child nor a late one may touch MPI
            return
        unfinished.cancel()
        if not unfinished.settle():
            self._given_up.append(unfinished)

    def sweep(self) -> None:
        """Let go of what MPI has finished with, unless another thread does so."""
        if not (self._given_up or self._kept) or not self._settling.acquire(blocking=False):
            return
        try:
            while self._given_up:
                self._kept.append(self._given_up.popleft())
            if not _has_ended():
                self._kept = [unfinished for unfinished in self._kept if not unfinished.settle()]
        finally:
            self._settling.release()

    def close(self, error: Exception) -> None:
        """The group ends: what is not over ends with `error`, and what MPI does not finish soon is
        kept as long as the process lives."""
        for message in list(self._live):
            message.end(error)
        until_s = time.monotonic() + CANCEL_S
        self.sweep()
        while (self._given_up or self._kept) and time.monotonic() < until_s:
            time.sleep(1e-3)
            self.sweep()
        for unfinished in (*self._given_up, *self._kept):
            keep_for_ever(unfinished)
        self._given_up, self._kept = deque(), []


def _has_ended() -> bool:
    """Return whether MPI has been finalised."""
    library = sys.modules.get("mpi4py.MPI")
    return library is not None and bool(library.Is_finalized())


def keep_for_ever(unfinished: object) -> None:
    """Never free it: MPI may write to its memory as long as the process lives."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(unfinished))
