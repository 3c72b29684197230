"""Executor of reader processes, for work that holds the GIL.

They are started by forkserver, so none is a fork of a process that has initialised MPI. A reader
exits when its parent process ends for any reason.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from phalanx.jobs.worker_environment import worker_environment

SHUTDOWN_S = 5.0
"""Time for a reader to finish its current item before it is killed."""


class ReaderProcesses(ProcessPoolExecutor):
    """Processes that call `fetch`, which must be picklable, as its items and results must be."""

    def __init__(self, fetch: Callable[[Any], Any], readers: int) -> None:
        super().__init__(
            readers,
            mp_context=multiprocessing.get_context("forkserver"),
            initializer=_begin,
            initargs=(fetch,),
        )
        self._is_of_main = b"__main__" in pickle.dumps(fetch)
        self._started: dict[int, BaseProcess] = {}

    def fetch(self, item: Any) -> Future[Any]:
        """Submit an item. Processes start when they are needed first."""
        with worker_environment(), nullcontext() if self._is_of_main else _hidden_main():
            future = self.submit(_fetch, item)
        self._started.update(self._processes)
        return future

    def describe_exit(self) -> str:
        """Say how the process that has ended by itself did; the others are ended."""
        self.shutdown()
        codes = {pid: process.exitcode or 0 for pid, process in self._started.items()}
        pid = max(codes, key=lambda pid: codes[pid] not in (0, -signal.SIGTERM))
        code = codes[pid]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"a reader, process {pid}, has ended by itself ({how})"

    def close(self) -> None:
        """End the processes after their current items, or kill them."""
        self.shutdown(wait=False, cancel_futures=True)
        for process in self._started.values():
            process.join(SHUTDOWN_S)
            if process.exitcode is None:
                process.kill()
                process.join()


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide `__main__` meanwhile: a started process would import it and all that it imports, which
    takes seconds where that is PyTorch."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_fetcher: Callable[[Any], Any]
"""Function of this process, where it is a reader."""


def _begin(fetch: Callable[[Any], Any]) -> None:
    global _fetcher
    _fetcher = fetch
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a reader"
    parent.join()
    os._exit(1)


def _fetch(item: object) -> Any:
    try:
        return _fetcher(item)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001  # not picklable
            raise RuntimeError("".join(traceback.format_exception(error))) from None
        raise
