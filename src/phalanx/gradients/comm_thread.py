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


class CommThread(Generic[Task]):
    """Thread that runs submitted tasks in order. After an error it runs no more."""

    def __init__(self, do: Callable[[Task], None]) -> None:
        self._do = do
        self._submitted: SimpleQueue[Task | None] = SimpleQueue()
        self._done: SimpleQueue[CompletedTask[Task] | None] = SimpleQueue()
        self._pending = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="grad-comm", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Raise the error of an earlier task, if any."""
        self._raise()
        self._pending += 1
        self._submitted.put(task)

    def wait(self) -> list[CompletedTask[Task]]:
        """Wait for all tasks submitted since the last call, and return them. Raises: the first
        error."""
        done = []
        while self._pending:
            completed = self._done.get()
            self._pending -= 1
            if completed is not None:
                done.append(completed)
        self._raise()
        return done

    def close(self) -> None:
        """End the thread, which must be idle."""
        self._submitted.put(None)
        self._thread.join(CLOSING_TIMEOUT_S)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    @torch.no_grad()
    def _run(self) -> None:
        while (task := self._submitted.get()) is not None:
            self._done.put(self._execute(task))

    def _execute(self, task: Task) -> CompletedTask[Task] | None:
        """Run one task; return None after an error."""
        if self._error is not None:
            return None
        began_ns = now_ns()
        try:
            self._do(task)
        except BaseException as error:  # noqa: BLE001  raised by whoever hands over or waits
            self._error = error
            return None
        return CompletedTask(task, began_ns, now_ns())


class SameThread(Generic[Task]):
    """Runs submitted tasks at once, on the thread that submits them."""

    def __init__(self, do: Callable[[Task], None]) -> None:
        self._do = do
        self._done: list[CompletedTask[Task]] = []

    @torch.no_grad()
    def submit(self, task: Task) -> None:
        began_ns = now_ns()
        self._do(task)
        self._done.append(CompletedTask(task, began_ns, now_ns()))

    def wait(self) -> list[CompletedTask[Task]]:
        """Return all tasks submitted since the last call."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Do nothing: there is no thread."""


def times_of(completed: Sequence[CompletedTask[Task]], computed_ns: int) -> ReduceTimes:
    """Return the times of buckets, the last of which nothing can hide. computed_ns: when the
    backward pass ended."""
    *others, last = completed
    hidden_ns = sum(max(0, min(c.ended_ns, computed_ns) - c.began_ns) for c in others)
    last_ns = max(0, last.ended_ns - max(last.began_ns, computed_ns))
    exposed_ns = now_ns() - computed_ns
    return ReduceTimes(exposed_ns / 1e9, hidden_ns / 1e9, last_ns / 1e9)
