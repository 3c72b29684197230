"""One rank's part in a trace: spans while it trains, a file at its end, however it ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from phalanx.parallel.run_group import RunGroup
from phalanx.records.last_collectives import DUMP_DIR
from phalanx.records.spans import SpanRecorder, TracedRank, write_spans


def dump_into(folder: Path) -> None:
    """Set the folder to which ranks write their last collectives on failure, unless the user has
    named another."""
    os.environ.setdefault(DUMP_DIR, str(folder))


class Tracing:
    """Trace of one rank, from the moment at which all ranks are connected."""

    def __init__(self, group: RunGroup, folder: Path, began_at: float) -> None:
        """began_at: seconds of `time.perf_counter()` that the rank's events count from. Collective:
        the clocks of several machines are compared."""
        self._group, self._folder = group, folder
        self._rank, self._size = group.rank, group.size  # before any is lost
        self._began_ns = int(began_at * 1e9)
        self._spans: SpanRecorder | None = SpanRecorder()
        self._readings = [group.clock()]
        group.trace(self._spans)

    def compare_clocks(self) -> None:
        """Compare the clocks again, at the end: drift is taken as linear. Collective; later spans
        are not part of the trace."""
        self._group.trace(None)
        self._readings.append(self._group.clock())

    def write(self) -> None:
        """Write the rank's file, once."""
        spans, self._spans = self._spans, None
        if spans is None:
            return
        traced = TracedRank(
            rank=self._rank,
            size=self._size,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            began_ns=self._began_ns,
            readings=self._readings,
            dropped=spans.dropped,
        )
        write_spans(self._folder, traced, spans.take())
