"""Tracing of reads: a span for each call of a reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from phalanx.records.spans import SpanRecorder, now_ns

Item = TypeVar("Item")
Result = TypeVar("Result")


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
