"""`Work` objects returned by collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistBackendError, Work
from torch.futures import Future

from phalanx.torch_backend.tensors import TensorStaging


def to_seconds(timeout: timedelta | None) -> float | None:
    """Return seconds; None for PyTorch's "default timeout", which is zero or negative."""
    if timeout is None or timeout.days < 0 or not timeout:
        return None
    return timeout.total_seconds()


def gpus_of(results: Sequence[Tensor]) -> list[int | str | torch.device]:
    """Return the GPUs of `results`: waiting on a future with GPUs waits for their streams."""
    return list({tensor.device for tensor in results if tensor.device.type != "cpu"})


class PendingWork(Work):
    """Work that its thread, or another, completes."""

    def __init__(
        self, results: list[Tensor], text: str, staging: TensorStaging | None = None
    ) -> None:
        """results: value of the future; text: name of the call in error messages."""
        super().__init__()
        self._results, self.text, self._staging = results, text, staging
        self.error: BaseException | None = None
        self._is_done = False
        self._done = threading.Lock()
        self._done.acquire()
        self._guard = threading.Lock()
        self._promise: Future[Any] | None = None
        self._future: Future[Any] | None = None
        self._at_end: Callable[[], None] | None = None

    def is_completed(self) -> bool:
        return self._is_done

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until completion.

        Raises: the error of the call, or DistBackendError when it takes longer than `timeout`.
        """
        if not self._is_done:
            self._wait_until_done(to_seconds(timeout))
        if self.error is not None:
            raise self.error
        if self._staging is not None:
            self._staging.sync_stream()
        return True

    def get_future(self) -> Future[Any]:
        """Return a future that fails as those of C++ do.

        An exception that Python sets is a value there, which DDP's reducer would take for tensors.
        """
        with self._guard:
            if self._future is None:
                promise: Future[Any] = Future(devices=gpus_of(self._results))
                self._promise = promise
                is_success = self._is_done and self.error is None
                self._future = promise if is_success else promise.then(lambda _: self._outcome())
                if self._is_done:
                    self._complete(promise)
            return self._future

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Call `call`, which ends the event of a profiler, before those that wait return."""
        with self._guard:
            if not self._is_done:
                self._at_end = call
                return
        call()

    def finish(self) -> None:
        with self._guard:
            self._is_done = True
            promise, at_end = self._promise, self._at_end
        if at_end is not None:
            at_end()
        self._done.release()
        if promise is not None:
            self._complete(promise)

    def _wait_until_done(self, timeout_s: float | None) -> None:
        if not self._done.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise DistBackendError(f"{self.text} was not complete after {timeout_s:g} s")
        self._done.release()

    def _outcome(self) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        return self._results

    def _complete(self, promise: Future[Any]) -> None:
        if self.error is None and self._staging is not None:
            self._staging.sync_stream()
        promise.set_result(self._results)


class CompletedWork(PendingWork):
    """Work of a collective that completed synchronously; its future ends with `results`."""

    def __init__(self, results: list[Tensor]) -> None:
        Work.__init__(self)  # DDP has one per bucket: the locks of a pending one take 2 µs
        self._results, self.error, self._is_done = results, None, True

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002
        return True

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future(devices=gpus_of(self._results))
        future.set_result(self._results)
        return future

    def call_at_end(self, call: Callable[[], None]) -> None:
        call()


class CoalescedWork(PendingWork):
    """One work for several, of coalesced calls."""

    def __init__(self, works: Sequence[Work], results: list[Tensor], text: str) -> None:
        super().__init__(results, text)
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for e in (work.exception() for work in self._works) if e), None)

    def get_future(self) -> Future[Any]:
        futures = [work.get_future() for work in self._works]
        together: Future[Any] = torch.futures.collect_all(futures)
        results = self._results
        return together.then(lambda done: ([part.value() for part in done.value()], results)[1])
