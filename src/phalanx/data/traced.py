"""Tracing of reads: a span for each call of a reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from phalanx.records.spans import SpanRecorder, now_ns

Asked = TypeVar("Asked")
Got = TypeVar("Got")


def traced(fetch: Callable[[Asked], Got], spans: SpanRecorder) -> Callable[[Asked], Got]:
    """`fetch`; each call leaves a span in a lane of the thread that makes it."""

    def read(item: Asked) -> Got:
        began = now_ns()
        got = fetch(item)
        spans.add("read", lane_of(threading.current_thread().name), began, now_ns())
        return got

    return read


def lane_of(thread: str) -> str:
    """Return the trace lane of a thread: numbered for a thread of a reader pool, else "reader".

    For example: "reader_1" is "reader 1".
    """
    name, _, number = thread.rpartition("_")
    return f"{name} {number}" if name == "reader" and number.isdigit() else "reader"
