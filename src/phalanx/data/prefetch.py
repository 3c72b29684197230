"""Work that is done ahead by readers, its results in order, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

Asked = TypeVar("Asked")
Got = TypeVar("Got")

ReaderKind = Literal["threads", "processes"]


def prefetched(
    fetch: Callable[[Asked], Got],
    work: Iterable[Asked],
    *,
    readers: int,
    depth: int,
    kind: ReaderKind = "threads",
    timeout_s: float = 300.0,
) -> Iterator[Got]:
    """`fetch(item)` for every item of `work`, in its order, while at most `depth` results wait to
    be taken and at most `readers` are being made. readers 0: made when they are asked for.

    kind: `processes` are started by forkserver, never fork; `fetch`, the items and results are then
          pickled, results' arrays come through shared memory.
    Closing the iterator ends the readers. An error of `fetch` is raised where its result was due.
    Raises: RunFailedError within a second when a reader process has died, saying how.
    """
    raise NotImplementedError
