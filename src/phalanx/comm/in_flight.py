"""Abandoned messages that MPI has not completed, and the memory that they use.

MPI writes to the buffer of a receive until the receive is complete or cancelled, and reads that of
a send, whether or not the request is still referenced. So the engine keeps both until MPI has
completed them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Protocol

CANCEL_S = 0.5  # time for MPI to report whether a receive was cancelled or has completed


class PendingOperation(ABC):
    """An operation that MPI has not completed, with the buffers that it uses."""

    is_done = False

    def peers(self) -> Sequence[int]:
        """Return the ranks that must all take part in it; none where MPI does not say whom it waits
        for."""
        return ()

    @abstractmethod
    def advance(self) -> bool:
        """Make progress; return whether any was made."""

    def cancel(self) -> None:  # noqa: B027
        """Cancel it, where MPI can. Its buffers are in use until `settle` returns True."""

    @abstractmethod
    def settle(self) -> bool:
        """Return whether MPI no longer uses its buffers; called after `cancel`."""


class OpenMessage(Protocol):
    """A message that is still referenced."""

    def end(self, error: Exception) -> None:
        """End it with `error`, unless it is complete."""


class InFlight:
    """Messages of a group, and those abandoned that MPI has not completed."""

    def __init__(self) -> None:
        self._live: weakref.WeakSet[OpenMessage] = weakref.WeakSet()
        self._abandoned: deque[PendingOperation] = deque()  # filled by any thread, in `sweep` too
        self._kept: list[PendingOperation] = []  # only the thread that holds `_settling` uses it
        self._settling = threading.Lock()
        self._process = os.getpid()

    def add(self, message: OpenMessage) -> None:
        self._live.add(message)

    def abandon(self, unfinished: PendingOperation) -> None:
        """Cancel it, and keep its buffers until MPI has completed it. Does not wait. May run on any
        thread, at any time: a message is abandoned when it is garbage-collected."""
        if self._process != os.getpid() or _has_ended():
            keep_alive_forever(unfinished)  # neither a forked child nor a late one may touch MPI
            return
        unfinished.cancel()
        if not unfinished.settle():
            self._abandoned.append(unfinished)

    def sweep(self) -> None:
        """Release what MPI has completed, unless another thread does so."""
        if not (self._abandoned or self._kept) or not self._settling.acquire(blocking=False):
            return
        try:
            while self._abandoned:
                self._kept.append(self._abandoned.popleft())
            if not _has_ended():
                self._kept = [unfinished for unfinished in self._kept if not unfinished.settle()]
        finally:
            self._settling.release()

    def close(self, error: Exception) -> None:
        """End open messages with `error`; what MPI does not complete soon is kept as long as the
        process lives."""
        for message in list(self._live):
            message.end(error)
        until_s = time.monotonic() + CANCEL_S
        self.sweep()
        while (self._abandoned or self._kept) and time.monotonic() < until_s:
            time.sleep(1e-3)
            self.sweep()
        for unfinished in (*self._abandoned, *self._kept):
            keep_alive_forever(unfinished)
        self._abandoned, self._kept = deque(), []


def _has_ended() -> bool:
    """Return whether MPI has been finalised."""
    library = sys.modules.get("mpi4py.MPI")
    return library is not None and bool(library.Is_finalized())


def keep_alive_forever(unfinished: object) -> None:
    """Never free it: MPI may write to its memory as long as the process lives."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(unfinished))
