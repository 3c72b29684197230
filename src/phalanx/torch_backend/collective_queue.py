"""The queue of a group: its collectives run one at a time, in submission order."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from torch import Tensor
from torch.futures import Future

from phalanx.torch_backend.errors import ENGINE_ERRORS, to_torch_error
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import PendingWork


class _ThreadQueue(threading.local):
    queue: CollectiveQueue | None = None
    """The queue whose thread this is."""


_THREAD_QUEUE = _ThreadQueue()
_QUEUES: weakref.WeakSet[CollectiveQueue] = weakref.WeakSet()
DEFERRED_CALLS: deque[Callable[[], object]] = deque()
"""Calls for the main thread, deferred until it is in no collective."""


class CollectiveQueue:
    """The collectives of one group, in order, on a thread that the first `submit` starts.

    A call that finds the queue empty runs on the calling thread: waking up another one would cost
    more than most collectives.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._unfinished: deque[QueuedWork] = deque()
        self._submitting = threading.Lock()
        # Reentrant only because RLock knows its owner; no thread takes it twice.
        self._running = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_over = False
        _QUEUES.add(self)

    def run_inline(self, call: Callable[[], object]) -> bool:
        """Run `call` on this thread; False, without running it, when the queue is not empty.

        Raises: DistBackendError for an error of the engine."""
        if not self.try_begin():
            return False
        try:
            call()
        except ENGINE_ERRORS as error:
            raise to_torch_error(error) from None
        finally:
            self.end()
        return True

    def try_begin(self) -> bool:
        """Return whether the caller may run a call on this thread now; it must call `end` after."""
        return (
            not self._unfinished
            and not self._running._is_owned()  # type: ignore[attr-defined]
            and self._running.acquire(blocking=False)
        )

    def end(self) -> None:
        self._running.release()
        if DEFERRED_CALLS:
            run_deferred_calls()

    def is_inside(self) -> bool:
        """Return whether this thread is in a call of this queue, as a signal handler may be.

        Tasks that it submits cannot run before it returns."""
        owned: bool = self._running._is_owned()  # type: ignore[attr-defined]
        return owned and not self._is_over

    def submit(self, task: QueuedWork) -> None:
        with self._submitting:
            if self._is_closed:
                raise RuntimeError(f"{task.text}: the group has been destroyed")
            self._unfinished.append(task)
            self._tasks.put(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def is_worker(self) -> bool:
        return _THREAD_QUEUE.queue is self

    def run_next(self) -> bool:
        """Run the next task on the worker thread, for a callback that waits for a later task; False
        when the queue is empty."""
        try:
            task = self._tasks.get_nowait()
        except Empty:
            return False
        if task is None:
            self._tasks.put(None)  # the end, for the loop that this callback returns to
            return False
        self._do(task)
        return True

    def unfinished(self) -> list[QueuedWork]:
        """Return the submitted tasks that have not completed, the running one first."""
        return list(self._unfinished)

    def close(self, timeout_s: float) -> bool:
        """Refuse new tasks and wait for the running ones, on any thread; return whether all ended.

        False: no task has ended for `timeout_s`; call it again."""
        with self._submitting:
            if not self._is_closed:
                self._is_closed = True
                self._tasks.put(None)
        timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
        thread = self._thread
        if self.is_worker():
            run_until(lambda: False)
        elif thread is not None:
            left = -1
            while thread.is_alive() and left != len(self._unfinished):
                left = len(self._unfinished)
                thread.join(timeout_s)
            if thread.is_alive():
                return False
        # Never released: no call may begin any more.
        self._is_over = self._is_over or self._running.acquire(timeout=timeout_s)
        if self._is_over:
            _QUEUES.discard(self)
        return self._is_over

    def _work(self) -> None:
        _THREAD_QUEUE.queue = self
        while (task := self._tasks.get()) is not None:
            self._do(task)
            del task  # free its tensors before blocking for the next one

    def _do(self, task: QueuedWork) -> None:
        with self._running:
            task.run()
        self._unfinished.popleft()
        task.finish()


class QueuedWork(PendingWork):
    """Work of a collective in the queue of its group."""

    def __init__(
        self,
        call: Callable[[], object],
        results: list[Tensor],
        text: str,
        queue: CollectiveQueue,
        staging: TensorStaging | None = None,
    ) -> None:
        super().__init__(results, text, staging)
        self._call: Callable[[], object] | None = call
        self._queue = queue

    def run(self) -> None:
        assert self._call is not None
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            self.error = to_torch_error(error)
        self._call = None  # free the tensors that it holds

    def get_future(self) -> Future[Any]:
        self.run_until_done()
        return super().get_future()

    def run_until_done(self) -> None:
        """Run the queue up to this collective, on its worker thread.

        Callbacks of an earlier collective may wait for this one, as those of PowerSGD do, on the
        only thread that could run it."""
        if self._queue.is_worker():
            run_until(lambda: self._is_done)

    def _wait_until_done(self, timeout_s: float | None) -> None:
        if self._queue.is_inside():
            raise RuntimeError(
                f"{self.text}: awaited in the middle of another collective of this thread, by a "
                "signal handler; it can only run after that one. Set a flag in the handler, and "
                "call collectives after the interrupted one"
            )
        self.run_until_done()
        super()._wait_until_done(timeout_s)


def run_until(done: Callable[[], bool]) -> None:
    """Run the tasks of the queue whose worker this thread is, until `done()` or none is left."""
    queue = _THREAD_QUEUE.queue
    while queue is not None and not done() and queue.run_next():
        pass


def is_in_collective() -> bool:
    """Return whether this thread is in a call of any queue."""
    return any(queue.is_inside() for queue in list(_QUEUES))


def run_deferred_calls() -> None:
    """Run the deferred calls, once the main thread is in no collective."""
    if threading.current_thread() is threading.main_thread() and not is_in_collective():
        while DEFERRED_CALLS:
            DEFERRED_CALLS.popleft()()
