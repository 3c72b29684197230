"""Events and output of the first of the ranks that are left: it does for all what rank 0 does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from phalanx.jobs.rank_log import log_file
from phalanx.jobs.rank_notes import has_failed
from phalanx.records.events import Event, RecoveredEvent
from phalanx.records.files import EventTail, rank_file
from phalanx.records.rank_texts import LOSS_LINE


class Output(Protocol):
    """Stream for the output of ranks, such as `sys.stdout.buffer`."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class FirstRankTail:
    """Reads the events of rank 0 while its file grows; where that has died, those of the next rank
    from its recovery on, and so forth."""

    def __init__(self, folder: Path) -> None:
        """folder: of the records, and of the notes of how processes have ended."""
        self._folder = folder
        self._tails = [EventTail(rank_file(folder, 0))]
        self._touched_at, self._has_begun = 0.0, False
        self._lost = [set[int]()]
        """Ranks without which each goes on, as far as its file was read."""

    def read_new(self) -> Iterator[Event]:
        """Yield what was added since the last call."""
        last = len(self._tails) - 1
        if has_failed(self._folder, last):
            self._tails.append(EventTail(rank_file(self._folder, last + 1)))
            self._lost.append(set())
        for rank, (tail, lost) in enumerate(zip(self._tails, self._lost, strict=True)):
            for event in tail.read_new():
                if isinstance(event, RecoveredEvent):
                    lost.update(event.lost)
                if lost.issuperset(range(rank)):
                    self._has_begun = True
                    yield event

    def was_touched(self) -> bool:
        """Return whether the rank has touched its file since the last call, as one does that goes
        on though its disk takes no more. One that has only made the file has not begun."""
        path, before = rank_file(self._folder, len(self._tails) - 1), self._touched_at
        with contextlib.suppress(OSError):
            self._touched_at = path.stat().st_mtime
        return self._has_begun and self._touched_at != before


class FirstRankOutput:
    """Copies what rank 0 prints while its log grows; where that has died, what the next rank prints
    from the line about the loss on, and so forth."""

    def __init__(self, folder: Path, output: Output) -> None:
        """folder: of the logs, and of the notes of how processes have ended."""
        self._folder, self._output = folder, output
        self._read = [0]
        """Bytes read of the log of each rank."""
        self._are_shown = {0}
        """Ranks that have printed something as the first."""

    def copy_new(self) -> bool:
        """Copy what was added since the last call, and return whether there was anything."""
        while has_failed(self._folder, len(self._read) - 1):
            self._read.append(0)
        return sum(self._copy(rank) for rank in range(len(self._read))) > 0

    def _copy(self, rank: int) -> int:
        """Copy what is new of a rank's, and return the number of bytes."""
        log = log_file(self._folder, rank)
        if not log.exists():
            return 0
        with log.open("rb") as file:
            file.seek(self._read[rank])
            new = file.read()
        if rank not in self._are_shown:
            found = LOSS_LINE.search(new)
            if found is None:
                self._read[rank] += new.rfind(b"\n") + 1  # a line may be half written
                return 0
            self._are_shown.add(rank)
            self._read[rank] += found.start()
            new = new[found.start() :]
        self._read[rank] += len(new)
        self._output.write(new)
        self._output.flush()
        return len(new)
