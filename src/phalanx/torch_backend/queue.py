"""The calls of one group, one at a time, in the order in which they were submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol


class Task(Protocol):
    def run(self) -> None:
        """Do it; keeps what went wrong."""

    def finish(self) -> None:
        """Tell whoever waits. What they do then may submit more."""


class Order:
    """A queue with a thread of its own, started when something is first submitted to it.

    A call that finds nothing before it runs on the thread that makes it: no other thread has to
    wake up for it, which would cost more than most collectives.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._submitting = threading.Lock()
        self._running = threading.Lock()
        self._submitted = self._finished = 0
        self._thread: threading.Thread | None = None

    def run_at_once(self, call: Callable[[], object]) -> bool:
        """Run `call` here and now; False, without running it, when others are before it."""
        if not self.begin():
            return False
        try:
            call()
        finally:
            self.end()
        return True

    def begin(self) -> bool:
        """Whether the caller may run a call here and now; it says `end` after it."""
        return self._submitted == self._finished and self._running.acquire(blocking=False)

    def end(self) -> None:
        self._running.release()

    def submit(self, task: Task) -> None:
        with self._submitting:
            self._submitted += 1
            self._tasks.put(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def is_worker(self) -> bool:
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def run_next(self) -> None:
        """On the worker's own thread, where a callback waits for what comes after it."""
        task = self._tasks.get_nowait()
        if task is not None:
            self._do(task)

    def close(self, timeout_s: float) -> bool:
        """End the thread after what has been submitted; whether it ended in time."""
        with self._submitting:
            thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._tasks.put(None)
        if thread.ident != threading.get_ident():
            thread.join(timeout_s)
        return not thread.is_alive()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._do(task)
            del task  # its tensors must not live until the next one comes

    def _do(self, task: Task) -> None:
        with self._running:
            task.run()
        self._finished += 1
        task.finish()
