"""A background thread that communicates, one task after the other, while the rank computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

import torch

from phalanx.records.spans import now_ns

CLOSING_TIMEOUT_S = 5.0
Work = TypeVar("Work")


class Carried(NamedTuple, Generic[Work]):
    """A completed task, with its times."""

    work: Work
    began_ns: int
    ended_ns: int


class Carrier(Generic[Work]):
    """Thread that runs submitted tasks in order. After an error it runs no more."""

    def __init__(self, do: Callable[[Work], None]) -> None:
        self._do = do
        self._handed: SimpleQueue[Work | None] = SimpleQueue()
        self._done: SimpleQueue[Carried[Work] | None] = SimpleQueue()
        self._pending = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def hand_over(self, work: Work) -> None:
        """Raise the error of an earlier task, if any."""
        self._raise()
        self._pending += 1
        self._handed.put(work)

    def wait(self) -> list[Carried[Work]]:
        """Wait for all tasks submitted since the last call, and return them. Raises: the first
        error."""
        done = []
        while self._pending:
            carried = self._done.get()
            self._pending -= 1
            if carried is not None:
                done.append(carried)
        self._raise()
        return done

    def close(self) -> None:
        """End the thread, which must be idle."""
        self._handed.put(None)
        self._thread.join(CLOSING_TIMEOUT_S)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    @torch.no_grad()
    def _run(self) -> None:
        while (work := self._handed.get()) is not None:
            self._done.put(self._carried(work))

    def _carried(self, work: Work) -> Carried[Work] | None:
        """Run one task; return None after an error."""
        if self._error is not None:
            return None
        began_ns = now_ns()
        try:
            self._do(work)
        except BaseException as error:  # noqa: BLE001  raised by whoever hands over or waits
            self._error = error
            return None
        return Carried(work, began_ns, now_ns())
