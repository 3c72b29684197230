"""`Work` objects returned by asynchronous sends and receives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.distributed import DistBackendError
from torch.futures import Future

from phalanx.comm.group import Request
from phalanx.torch_backend.errors import as_torch
from phalanx.torch_backend.work import PendingWork

SHORTEST_NAP_S, LONGEST_NAP_S = 100e-6, 1e-3
IDLE_S = 1.0  # after which the thread ends


class PointToPointWork(PendingWork):
    """Work of a send or a receive. It progresses only when somebody polls it or waits."""

    def __init__(
        self,
        request: Request,
        results: list[Tensor],
        text: str,
        *,
        timeout_s: float,
        source: int | None,
        store: Callable[[], None],
        watch: Callable[[PointToPointWork], None],
    ) -> None:
        """store: brings a copy back; watch: has a thread look at this message until it is done."""
        super().__init__(results, text)
        self._request, self._source, self._timeout_s = request, source, timeout_s
        self._store, self._watch = store, watch
        self._moving = threading.Lock()

    def is_completed(self) -> bool:
        return self.move()

    def is_success(self) -> bool:
        return self.move() and self._error is None

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        if not self._is_done or self._source is None:
            raise RuntimeError(f"{self._text} has no source rank (yet)")
        return self._source

    def get_future(self) -> Future[Any]:
        future = super().get_future()
        if not self._is_done:
            self._watch(self)
        return future

    def move(self) -> bool:
        """Test the request once, without blocking; return whether the message is complete."""
        if not self._is_done and self._moving.acquire(blocking=False):
            try:
                self._try(self._request.test)
            finally:
                self._moving.release()
        return self._is_done

    def _await(self, timeout_s: float | None) -> None:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not self._moving.acquire(timeout=limit_s):
            raise DistBackendError(f"{self._text} was not over after {limit_s:g} s")
        try:
            if not self._is_done:
                self._try(partial(self._waited, limit_s))
        finally:
            self._moving.release()

    def _waited(self, timeout_s: float) -> bool:
        self._request.wait(timeout_s)
        return True

    def _try(self, look: Callable[[], bool]) -> None:
        try:
            if not look():
                return
            if self._source is None:
                self._source = self._request.source
            self._store()
        except Exception as error:  # noqa: BLE001  raised by `wait`
            self._error = as_torch(error)
        self.finish()


class ProgressThread:
    """A thread that moves messages on while nobody else does: those whose futures somebody waits
    for, and those that are sent while the program computes. Between nodes, and where the kernel
    does not let a process read another's memory, a longer message leaves in several turns, and
    each wants its sender to look.

    It looks often at first and less often as a wait grows long.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._messages: list[PointToPointWork] = []
        self._news = threading.Event()
        self._is_open = True
        self._thread: threading.Thread | None = None

    def add(self, message: PointToPointWork) -> None:
        with self._guard:
            self._messages.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name=self._name, daemon=True)
                self._thread.start()
        self._news.set()

    def close(self) -> None:
        self._is_open = False
        self._news.set()
        thread = self._thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join(1.0)

    def _look(self) -> None:
        """Until nothing new has come for a while; the next message starts another thread."""
        while self._is_open:
            if self._news.wait(IDLE_S):
                self._news.clear()
                self._move_on()
            with self._guard:
                if not self._messages and not self._news.is_set():
                    self._thread = None
                    return

    def _move_on(self) -> None:
        """Until nothing is left to look at."""
        began_s = time.monotonic()
        while self._is_open and self._messages:
            if self._news.is_set():
                self._news.clear()
                began_s = time.monotonic()
            waited_s = time.monotonic() - began_s
            time.sleep(min(max(SHORTEST_NAP_S, waited_s / 50), LONGEST_NAP_S))
            for message in list(self._messages):
                message.move()
            with self._guard:
                self._messages = [m for m in self._messages if not m.is_completed()]
