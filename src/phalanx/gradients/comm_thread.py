"""Communication tasks: on a background thread while the rank computes, or at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

import torch

from phalanx.gradients.reducer import ReduceTimes
from phalanx.records.spans import now_ns

CLOSING_TIMEOUT_S = 5.0
Task = TypeVar("Task")


class CompletedTask(NamedTuple, Generic[Task]):
    """A completed task, with its times."""

    task: Task
    began_ns: int
    ended_ns: int


class CommTasks(Generic[Task]):
    """Submitted tasks, run in order: by a thread of their own, or at once by whoever submits them.
    After an error the thread runs no more."""

    def __init__(self, do: Callable[[Task], None], *, on_thread: bool) -> None:
        self._do = do
        self._submitted: SimpleQueue[Task | None] = SimpleQueue()
        self._done: SimpleQueue[CompletedTask[Task] | None] = SimpleQueue()
        self._num_pending = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if on_thread:
            self._thread = threading.Thread(target=self._run, name="grad-comm", daemon=True)
            self._thread.start()

    def submit(self, task: Task) -> None:
        """Raise the error of an earlier task of the thread, if any, or at once that of this one."""
        self._raise()
        if self._thread is None:
            self._done.put(self._timed(task))
        else:
            self._submitted.put(task)
        self._num_pending += 1

    def wait(self) -> list[CompletedTask[Task]]:
        """Wait for all tasks submitted since the last call, and return them. Raises: the first
        error."""
        done = []
        while self._num_pending:
            completed = self._done.get()
            self._num_pending -= 1
            if completed is not None:
                done.append(completed)
        self._raise()
        return done

    def close(self) -> None:
        """End the thread, which must be idle."""
        if self._thread is not None:
            self._submitted.put(None)
            self._thread.join(CLOSING_TIMEOUT_S)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (task := self._submitted.get()) is not None:
            completed = None
            if self._error is None:
                try:
                    completed = self._timed(task)
                except BaseException as error:  # noqa: BLE001  raised by whoever submits or waits
                    self._error = error
            self._done.put(completed)

    @torch.no_grad()
    def _timed(self, task: Task) -> CompletedTask[Task]:
        began_ns = now_ns()
        self._do(task)
        return CompletedTask(task, began_ns, now_ns())


def times_of(completed: Sequence[CompletedTask[Task]], computed_ns: int) -> ReduceTimes:
    """Return the times of buckets, the last of which nothing can hide. computed_ns: when the
    backward pass ended."""
    *others, last = completed
    hidden_ns = sum(max(0, min(c.ended_ns, computed_ns) - c.began_ns) for c in others)
    last_ns = max(0, last.ended_ns - max(last.began_ns, computed_ns))
    exposed_ns = now_ns() - computed_ns
    return ReduceTimes(exposed_ns / 1e9, hidden_ns / 1e9, last_ns / 1e9)
