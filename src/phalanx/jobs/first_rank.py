"""Events of the first of the ranks that are left: it does for all what rank 0 does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phalanx.launch.rank_log import has_failed
from phalanx.records.events import Event, RecoveredEvent
from phalanx.records.files import EventTail, rank_file


class FirstRankTail:
    """Reads the events of rank 0 while its file grows; where that has died, those of the next rank
    from its recovery on, and so forth."""

    def __init__(self, folder: Path, ranks: int) -> None:
        """folder: of the records, and of the notes of how processes have ended."""
        self._folder, self._ranks = folder, ranks
        self._tails = [EventTail(rank_file(folder, 0))]
        self._lost = [set[int]()]
        """By rank: those without which it goes on, as far as its file was read."""

    def read_new(self) -> Iterator[Event]:
        """Yield what was added since the last call."""
        last = len(self._tails) - 1
        if last + 1 < self._ranks and has_failed(self._folder, last):
            self._tails.append(EventTail(rank_file(self._folder, last + 1)))
            self._lost.append(set())
        for rank, (tail, lost) in enumerate(zip(self._tails, self._lost, strict=True)):
            for event in tail.read_new():
                if isinstance(event, RecoveredEvent):
                    lost.update(event.lost)
                if lost.issuperset(range(rank)):
                    yield event
