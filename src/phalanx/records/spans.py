"""Timed spans of a rank, held in memory while it runs: the content of a trace.

A traced rank writes `spans-<rank>.jsonl`, complete or not at all: a line about the rank and its
clock, then a line a span. Events of the run's records (`StepEvent`, `EvaluationEvent`,
`SavedEvent`) are not repeated there.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.records.files import DECODE_ERRORS, write_atomically
from phalanx.records.regular_file import read_regular

MOST_SPANS = 100_000
"""Kept of one rank, the latest: about 25 MB."""

Detail = dict[str, str | int | float]

now_ns = time.perf_counter_ns
"""The clock of all spans."""


class TraceSpan(NamedTuple):
    """One timed operation."""

    name: str
    """Name on the trace: "forward", "bucket 3"."""
    lane: str
    """Row of the rank in which it is shown: "compute", "network", "data"."""
    began_ns: int
    ended_ns: int
    detail: Detail | None = None


class SpanRecorder:
    """Spans of one rank, the latest ones when there are many. Any thread may add."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._spans: deque[tuple[str, str, int, int, Detail | None]] = deque(maxlen=most)
        self._count = itertools.count(1)  # `next` is one step for all threads
        self._added = 0

    def add(
        self,
        name: str,
        lane: str,
        began_ns: int,
        ended_ns: int,
        detail: Detail | None = None,
    ) -> None:
        """Cost: a tenth of a microsecond."""
        self._spans.append((name, lane, began_ns, ended_ns, detail))
        self._added = next(self._count)

    @property
    def dropped(self) -> int:
        """Return how many of the earliest spans were dropped to make room."""
        return max(0, self._added - (self._spans.maxlen or 0))

    def take(self) -> list[TraceSpan]:
        """Return all recorded spans, and clear the recorder."""
        taken, kept = [], self._spans
        while kept:
            taken.append(TraceSpan._make(kept.popleft()))
        return taken


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """Offset of a rank's clock from that of the first rank."""

    at_ns: int  # time on the rank's own clock
    offset_ns: int  # added to get the first rank's time
    error_ns: int | None = 0  # upper bound; None where unknown


class TracedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of `spans-<rank>.jsonl`."""

    rank: int
    size: int
    hostname: str
    process_id: int
    began_ns: int  # origin of `at_s` in the rank's events
    readings: list[ClockReading]  # one at the begin, one at the end of a completed run
    dropped: int = 0  # spans, the earliest


def spans_file(folder: Path, rank: int) -> Path:
    return folder / f"spans-{rank}.jsonl"


def write_spans(folder: Path, traced: TracedRank, spans: Sequence[TraceSpan]) -> None:
    """Whole or not at all."""
    encoder = msgspec.json.Encoder()
    content = encoder.encode_lines([traced, *spans])
    write_atomically(spans_file(folder, traced.rank), content, synced=False)


def read_spans(path: Path) -> tuple[TracedRank, list[TraceSpan]]:
    """Raises: ValueError, naming the file, when it is damaged; OSError when it cannot be read."""
    first, *lines = read_regular(path).splitlines() or [b""]
    decoder = msgspec.json.Decoder(TraceSpan)
    try:
        traced = msgspec.json.decode(first, type=TracedRank)
        return traced, [decoder.decode(line) for line in lines]
    except DECODE_ERRORS as error:
        raise ValueError(f"{path} is damaged: {error}") from error
