"""One piece of work at a time on a thread of its own, beside training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundWork(Generic[Result]):
    """A thread that does what it is given, while the caller goes on.

    The thread is no daemon: a program that ends without asking for the result still lets it end.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        """Return whether work is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, work: Callable[[], Result]) -> None:
        """Begin `work`, after that of the last call was taken."""
        assert self._thread is None, "one at a time"
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint")
        self._thread.start()

    def take(self, *, wait: bool) -> Result | None:
        """Return the result of finished work, once; None where there is none.

        wait: for work that is under way. Raises: what the work has raised.
        """
        if self._thread is None or (self.is_running and not wait):
            return None
        self._thread.join()
        result, error = self._result, self._error
        self._thread = self._result = self._error = None
        if error is not None:
            raise error
        return result

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001  # raised where the result is taken
            self._error = error
