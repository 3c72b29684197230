"""Summaries of epochs, which the first of the ranks that are left writes, each once."""

from __future__ import annotations

import contextlib
from pathlib import Path

from phalanx.comm.recovery import Recovery
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import SummaryEvent
from phalanx.records.files import EventWriter, rank_file, read_events
from phalanx.train.config import TrainConfig
from phalanx.train.metrics import epoch_line


class EpochSummaries:
    """Writer of the summaries. Every rank that knows one keeps it until all know that it is
    written: the first rank may die before."""

    def __init__(
        self, group: RunGroup, writer: EventWriter, folder: Path, config: TrainConfig
    ) -> None:
        """folder: of the records of all ranks, as far as this node sees them."""
        self._group, self._writer, self._folder, self._config = group, writer, folder, config
        self._unsettled: SummaryEvent | None = None
        group.follow(self._take_over)

    def add(self, summary: SummaryEvent) -> None:
        """Write and print a summary, on rank 0."""
        self._unsettled = summary
        if self._group.rank == 0:
            self._write(summary)

    def settle(self) -> None:
        """Note that every rank has come further than to where rank 0 has written the last one."""
        self._unsettled = None

    def _take_over(self, recovery: Recovery) -> None:
        """Write what the ranks that were first before this one have not."""
        summary = self._unsettled
        if summary is None or self._group.rank > 0 or self._group.is_waiting:
            return
        seen_by = {*recovery.lost, *self._group.lost, recovery.world.original_rank}
        if not any(self._is_in(rank_file(self._folder, rank), summary) for rank in seen_by):
            self._write(summary)

    def _is_in(self, path: Path, summary: SummaryEvent) -> bool:
        """Return whether a file of records has the summary; a damaged one ends where it is."""
        with contextlib.suppress(OSError, UserError):
            for event in read_events(path):
                if isinstance(event, SummaryEvent) and event.epoch == summary.epoch:
                    return True
        return False

    def _write(self, summary: SummaryEvent) -> None:
        self._writer.add(summary)
        self._writer.flush()
        print(epoch_line(summary, self._config), flush=True)
