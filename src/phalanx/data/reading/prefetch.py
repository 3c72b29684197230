"""Prefetching by threads or processes: results in order, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Generic, Literal, Protocol, TypeVar

from phalanx.data.reading.reader_processes import ReaderProcesses
from phalanx.errors import RunFailedError
from phalanx.records.spans import SpanRecorder, now_ns

Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)

ReaderKind = Literal["threads", "processes"]


class Readers(Protocol[Item_contra, Result_co]):
    """A pool that fetches ahead; reused for several passes."""

    def results(
        self, work: Iterable[Item_contra], *, depth: int, timeout_s: float
    ) -> Iterator[Result_co]:
        """Yield the result of every item, in order; at most `depth` are in progress or wait. One
        pass at a time; closing the iterator drops the remaining results."""

    def close(self) -> None:
        """End the readers after their current items."""


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
          pickled, and arrays come through shared memory that is released with the arrays.
    Closing the iterator ends the readers. An error of `fetch` is raised in place of its result.
    Cost: some tens of microseconds a result with threads, hundreds with processes, and there a copy
          of the arrays.
    Raises: RunFailedError at once when a reader process has died, with its exit code, and when no
            result has arrived for `timeout_s`.
    """
    pool = make_readers(fetch, readers, kind)
    try:
        yield from pool.results(work, depth=depth, timeout_s=timeout_s)
    finally:
        pool.close()


def make_readers(
    fetch: Callable[[Item], Result], readers: int, kind: ReaderKind
) -> Readers[Item, Result]:
    """Make readers for several passes. readers 0: the calling thread reads on demand."""
    if not readers:
        return _InlineReader(fetch)
    return _ThreadReaders(fetch, readers) if kind == "threads" else ReaderProcesses(fetch, readers)


class _InlineReader(Generic[Item, Result]):
    """No readers: fetches on demand in the calling thread."""

    def __init__(self, fetch: Callable[[Item], Result]) -> None:
        self._fetch = fetch

    def results(
        self,
        work: Iterable[Item],
        *,
        depth: int,  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> Iterator[Result]:
        yield from map(self._fetch, work)

    def close(self) -> None:
        pass


class _ThreadReaders(Generic[Item, Result]):
    """A thread pool. Work outside the GIL (reading, decoding, array arithmetic) overlaps with
    training."""

    def __init__(self, fetch: Callable[[Item], Result], readers: int) -> None:
        self._fetch = fetch
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")

    def results(self, work: Iterable[Item], *, depth: int, timeout_s: float) -> Iterator[Result]:
        pending: deque[Future[Result]] = deque()
        iterator = iter(work)
        try:
            for item in islice(iterator, depth):
                pending.append(self._pool.submit(self._fetch, item))
            while pending:
                result = _result(pending.popleft(), timeout_s)
                for item in islice(iterator, 1):
                    pending.append(self._pool.submit(self._fetch, item))
                yield result
                del result  # the caller owns it now
        finally:
            running = [future for future in pending if not future.cancel()]
            wait(running, timeout_s)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _result(future: Future[Result], timeout_s: float) -> Result:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():  # raised by `fetch`
            raise
        raise RunFailedError(f"a reader gave nothing for {timeout_s:g} s") from None


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
