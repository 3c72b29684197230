"""Progress of a run by the records of its ranks: updates made, and the newest checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import msgspec

from phalanx.records.events import Event, SavedEvent, StartedEvent, StepEvent

_Found = TypeVar("_Found", bound=Event)


def steps_made(folder: Path) -> int | None:
    """Return the number of updates after which the records end; None where there are none."""
    last = [_last(file, "step", StepEvent) for file in folder.glob("rank-*.jsonl")]
    return max((event.step + 1 for event in last if event is not None), default=None)


def newest_saved(folder: Path, *, silent: Collection[str] = ()) -> Path | None:
    """Return the checkpoint that was written last; None where the records name none.

    silent: hosts that do not answer: what ranks wrote there counts if it is seen here, too.
    """
    saved = []
    for file in folder.glob("rank-*.jsonl"):
        event, began = _last(file, "saved", SavedEvent), _last(file, "started", StartedEvent)
        host = "" if began is None else began.hostname
        is_lost = bool({host, host.partition(".")[0]} & {*silent})
        if event is not None and not (is_lost and not Path(event.path).exists()):
            saved.append(event)
    return Path(max(saved, key=lambda event: event.at_s).path) if saved else None


def position_of(name: str) -> tuple[int, int]:
    """Return epochs done and samples seen by the name of a checkpoint; (-1, 0) of any other
    name."""
    words = name.lstrip(".").split(".")[0].split("-")
    numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0) if numbers else (-1, 0)


def _last(file: Path, tag: str, kind: type[_Found]) -> _Found | None:
    """Return the last event of a kind; None where there is none that can be read."""
    mark, found = f'"event":"{tag}"'.encode(), b""
    try:
        with file.open("rb") as lines:
            for line in lines:
                if mark in line and line.endswith(b"\n"):
                    found = line
        return msgspec.json.decode(found, type=kind) if found else None
    except (OSError, msgspec.DecodeError):
        return None
