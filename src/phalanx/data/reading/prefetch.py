"""Prefetching by threads or processes: results in order, in bounded memory.

Processes are for work that holds the GIL. They are started by forkserver, so none is a fork of a
process that has initialised MPI, and exit when their parent process ends for any reason.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from itertools import islice
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar

from phalanx.errors import RunFailedError
from phalanx.jobs.worker_environment import worker_environment
from phalanx.records.spans import SpanRecorder, now_ns

Item = TypeVar("Item")
Result = TypeVar("Result")

ReaderKind = Literal["threads", "processes"]


class Readers(Generic[Item, Result]):
    """Pool that fetches ahead; reused for several passes."""

    def __init__(
        self, fetch: Callable[[Item], Result], readers: int, kind: ReaderKind = "threads"
    ) -> None:
        """readers: number of workers; 0: the calling thread fetches on demand."""
        self._fetch = fetch
        self._pool: ThreadPoolExecutor | ReaderProcesses | None = None
        if readers and kind == "threads":
            self._pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        elif readers:
            self._pool = ReaderProcesses(fetch, readers)

    def results(self, work: Iterable[Item], *, depth: int, timeout_s: float) -> Iterator[Result]:
        """Yield the result of every item, in order; at most `depth` are in progress or wait. One
        pass at a time; closing the iterator drops the remaining results.

        Raises: RunFailedError as `prefetched`.
        """
        if self._pool is None:
            yield from map(self._fetch, work)
            return
        pending: deque[Future[Result]] = deque()
        iterator = iter(work)
        try:
            pending.extend(map(self._submit, islice(iterator, depth)))
            while pending:
                result = self._result(pending.popleft(), timeout_s)
                pending.extend(map(self._submit, islice(iterator, 1)))
                yield result
                del result  # the caller owns it now
        except BrokenProcessPool as error:  # a result, or a new item, meets it first
            assert isinstance(self._pool, ReaderProcesses)
            raise RunFailedError(self._pool.describe_exit()) from error
        finally:
            running = [future for future in pending if not future.cancel()]
            wait(running, timeout_s)

    def close(self) -> None:
        """End the readers after their current items."""
        if isinstance(self._pool, ReaderProcesses):
            self._pool.close()
        elif self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _submit(self, item: Item) -> Future[Result]:
        assert self._pool is not None, "there are readers"
        if isinstance(self._pool, ReaderProcesses):
            return self._pool.fetch(item)
        return self._pool.submit(self._fetch, item)

    def _result(self, future: Future[Result], timeout_s: float) -> Result:
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # raised by `fetch`
                raise
            raise RunFailedError(f"a reader returned nothing for {timeout_s:g} s") from None


def prefetched(
    fetch: Callable[[Item], Result],
    work: Iterable[Item],
    *,
    readers: int,
    depth: int,
    kind: ReaderKind = "threads",
    timeout_s: float = 300.0,
) -> Iterator[Result]:
    """Yield `fetch(item)` for every item of `work`, in order, with at most `depth` results in
    progress or waiting, computed by `readers` workers. readers 0: computed on demand.

    kind: `processes` are started by forkserver, never fork; `fetch`, the items and results are then
          pickled.
    Closing the iterator ends the readers. An error of `fetch` is raised in place of its result.
    Cost: some tens of microseconds a result with threads, hundreds with processes, and there
          several copies of the arrays.
    Raises: RunFailedError at once when a reader process has died, with its exit code, and when no
            result has arrived for `timeout_s`.
    """
    pool = Readers(fetch, readers, kind)
    try:
        yield from pool.results(work, depth=depth, timeout_s=timeout_s)
    finally:
        pool.close()


def trace_reads(fetch: Callable[[Item], Result], spans: SpanRecorder) -> Callable[[Item], Result]:
    """Wrap `fetch` so that each call records a span in its thread's lane."""

    def read(item: Item) -> Result:
        began = now_ns()
        result = fetch(item)
        spans.add("read", lane_of(threading.current_thread().name), began, now_ns())
        return result

    return read


def lane_of(thread: str) -> str:
    """Return the trace lane of a thread: numbered for a thread of a reader pool, else "reader".

    For example: "reader_1" is "reader 1".
    """
    name, _, number = thread.rpartition("_")
    return f"{name} {number}" if name == "reader" and number.isdigit() else "reader"


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
        return f"a reader, process {pid}, ended unexpectedly ({how})"

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
