"""`Work` objects returned by asynchronous sends and receives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from torch import Tensor
from torch.distributed import DistBackendError
from torch.futures import Future

from phalanx.comm.message_request import MessageRequest
from phalanx.torch_backend.errors import to_torch_error
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import PendingWork

MIN_SLEEP_S, MAX_SLEEP_S = 100e-6, 1e-3


class PointToPointWork(PendingWork):
    """Work of a send or a receive. It progresses only when somebody polls it or waits."""

    def __init__(
        self,
        request: MessageRequest,
        tensor: Tensor,
        text: str,
        staging: TensorStaging,
        progress_thread: ProgressThread,
        *,
        timeout_s: float,
        source: int | None,
    ) -> None:
        super().__init__([tensor], text, staging)
        self._request, self._source, self._timeout_s = request, source, timeout_s
        self._store, self._progress_thread = staging.store, progress_thread
        self._polling = threading.Lock()

    def is_completed(self) -> bool:
        return self.poll()

    def source_rank(self) -> int:
        if not self._is_done or self._source is None:
            raise RuntimeError(f"{self.text} has no source rank (yet)")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        future = super().get_future()
        if not self._is_done:
            self._progress_thread.add(self)
        return future

    def poll(self) -> bool:
        """Test the request once, without blocking; return whether the message is complete."""
        if not self._is_done and self._polling.acquire(blocking=False):
            try:
                self._complete_if(self._request.test)
            finally:
                self._polling.release()
        return self._is_done

    def _wait_until_done(self, timeout_s: float | None) -> None:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not self._polling.acquire(timeout=limit_s):
            raise DistBackendError(f"{self.text} was not complete after {limit_s:g} s")
        try:
            if not self._is_done:
                self._complete_if(partial(self._wait_for_request, limit_s))
        finally:
            self._polling.release()

    def _wait_for_request(self, timeout_s: float) -> bool:
        self._request.wait(timeout_s)
        return True

    def _complete_if(self, is_complete: Callable[[], bool]) -> None:
        try:
            if not is_complete():
                return
            if self._source is None:
                self._source = self._request.source
            self._store()
        except Exception as error:  # noqa: BLE001  raised by `wait`
            self.error = to_torch_error(error)
        self.finish()


class ProgressThread:
    """A thread that polls messages while no other thread does.

    It polls messages whose futures are in use, and sends during computation: between nodes, and
    where the kernel denies reading another process's memory, a large message is sent in several
    chunks, and MPI progresses each only when the sender polls.

    It polls often at first, and less often as a wait grows long.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = threading.Lock()
        self._added: SimpleQueue[PointToPointWork | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: PointToPointWork) -> None:
        self._added.put(work)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._added.put(None)
        thread = self._thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join(1.0)

    def _run(self) -> None:
        works: list[PointToPointWork] = []
        began_s = 0.0
        while True:
            try:
                while (work := self._added.get(block=not works)) is not None:
                    works.append(work)
                    began_s = time.monotonic()
                return
            except Empty:
                work = None  # free its tensors once it is complete
            waited_s = time.monotonic() - began_s
            time.sleep(min(max(MIN_SLEEP_S, waited_s / 50), MAX_SLEEP_S))
            works = [each for each in works if not each.poll()]
