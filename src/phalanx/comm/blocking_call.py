"""A blocking call of MPI in a thread of its own, so that a wait for it can end before it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from phalanx.comm.in_flight import PendingOperation

T = TypeVar("T")

_SLICE_S = 1e-3
"""Part of a wait after which notices of other ranks are read."""


class BlockingCall(PendingOperation, Generic[T]):
    """A call that has begun. MPI cannot cancel it: once a wait for it has ended, its memory has to
    be kept until it returns."""

    def __init__(self, call: Callable[[], T], *memory: object) -> None:
        """memory: that the call uses."""
        self._memory = memory
        self._results, self._errors = list[T](), list[Exception]()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, args=[call], name="phalanx-mpi", daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._results.append(call())
        except Exception as error:  # noqa: BLE001  raised by `result`
            self._errors.append(error)
        self._is_over.set()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended in time. Leaves the core to others meanwhile."""
        return self._is_over.wait(timeout_s)

    def result(self) -> T:
        """Return what the call, which has ended, has returned. Raises: what it has raised."""
        if self._errors:
            raise self._errors[0]
        return self._results[0]

    def advance(self) -> bool:
        if self.wait(_SLICE_S):
            self.result()
            self.is_done = True
        return self.is_done

    def settle(self) -> bool:
        return self.wait(0)
