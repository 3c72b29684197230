"""Check that the records of a measurement are complete before they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.records.events import Event

DIED = "its process is gone: it ended without a word"


def check_complete(folder: Path, ranks: Mapping[Path, Sequence[Event]], last: type[Event]) -> None:
    """Check that the file of every rank has exactly one event of `last`, at its end.

    Raises: ValueError naming the files.
    """
    found = [(path, _damage(events, last)) for path, events in ranks.items()]
    texts = [f"{path.relative_to(folder)} {damage}" for path, damage in found if damage]
    if texts:
        raise ValueError(f"{folder} is damaged: {'; '.join(texts)}")


def _damage(events: Sequence[Event], last: type[Event]) -> str | None:
    if not events:
        return "is empty"
    if not isinstance(events[-1], last):
        return "ends before the run did"
    count = sum(isinstance(event, last) for event in events)
    return f"holds the end of the run {count} times" if count > 1 else None
