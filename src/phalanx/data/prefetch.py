"""Work that is done ahead by readers, its results in order, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Generic, Literal, Protocol, TypeVar

from phalanx.data.reader_processes import ReaderProcesses
from phalanx.errors import RunFailedError

Asked = TypeVar("Asked")
Got = TypeVar("Got")
Asked_contra = TypeVar("Asked_contra", contravariant=True)
Got_co = TypeVar("Got_co", covariant=True)

ReaderKind = Literal["threads", "processes"]


class Readers(Protocol[Asked_contra, Got_co]):
    """A pool that fetches ahead; reused for several passes."""

    def results(
        self, work: Iterable[Asked_contra], *, depth: int, timeout_s: float
    ) -> Iterator[Got_co]:
        """The result of every item, in their order; at most `depth` are made or wait. One pass at
        a time; closing it gives up what has not been taken."""

    def close(self) -> None:
        """End the readers, which finish what they are at."""


def prefetched(
    fetch: Callable[[Asked], Got],
    work: Iterable[Asked],
    *,
    readers: int,
    depth: int,
    kind: ReaderKind = "threads",
    timeout_s: float = 300.0,
) -> Iterator[Got]:
    """`fetch(item)` for every item of `work`, in its order, while at most `depth` results are being
    made or wait to be taken, `readers` of them at a time. readers 0: made when they are asked for.

    kind: `processes` are started by forkserver, never fork; `fetch`, the items and results are then
          pickled, results' arrays come through shared memory that is given back when they die.
    Closing the iterator ends the readers. An error of `fetch` is raised where its result was due.
    Cost: some tens of microseconds a result of threads, hundreds of processes, and there a copy of
          the arrays.
    Raises: RunFailedError at once when a reader process has died, saying how, and when nothing has
            come for `timeout_s`.
    """
    pool = make_readers(fetch, readers, kind)
    try:
        yield from pool.results(work, depth=depth, timeout_s=timeout_s)
    finally:
        pool.close()


def make_readers(
    fetch: Callable[[Asked], Got], readers: int, kind: ReaderKind
) -> Readers[Asked, Got]:
    """Readers for more than one pass. readers 0: this thread reads when it is asked."""
    if not readers:
        return _Nobody(fetch)
    return _Threads(fetch, readers) if kind == "threads" else ReaderProcesses(fetch, readers)


class _Nobody(Generic[Asked, Got]):
    """The one who asks reads."""

    def __init__(self, fetch: Callable[[Asked], Got]) -> None:
        self._fetch = fetch

    def results(
        self,
        work: Iterable[Asked],
        *,
        depth: int,  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> Iterator[Got]:
        yield from map(self._fetch, work)

    def close(self) -> None:
        pass


class _Threads(Generic[Asked, Got]):
    """A thread pool. Work outside the GIL (reading, decoding, array arithmetic) overlaps with
    training."""

    def __init__(self, fetch: Callable[[Asked], Got], readers: int) -> None:
        self._fetch = fetch
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="reader")

    def results(self, work: Iterable[Asked], *, depth: int, timeout_s: float) -> Iterator[Got]:
        begun: deque[Future[Got]] = deque()
        items = iter(work)
        try:
            for item in islice(items, depth):
                begun.append(self._pool.submit(self._fetch, item))
            while begun:
                got = _result(begun.popleft(), timeout_s)
                for item in islice(items, 1):
                    begun.append(self._pool.submit(self._fetch, item))
                yield got
                del got  # it is the taker's now
        finally:
            running = [future for future in begun if not future.cancel()]
            wait(running, timeout_s)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _result(future: Future[Got], timeout_s: float) -> Got:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():  # an error of the reader's own
            raise
        raise RunFailedError(f"a reader gave nothing for {timeout_s:g} s") from None
